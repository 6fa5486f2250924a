/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Materialising: backing granules and playing the lineage into them. The caller holds the claim on
 * the block. On failure nothing that was deferred is lost: the lineage is as before.
 */
#ifndef METASHARD_RUNTIME_MACHINE_MATERIALISE_H
#define METASHARD_RUNTIME_MACHINE_MATERIALISE_H

#include "runtime/machine/space.h"

/* Afterwards [begin, end) is resident and holds what the program wrote. Waits for the device. */
CUresult ms_materialise(struct ms_block *block, size_t begin, size_t end);

/* As ms_materialise, for a range that the program is about to overwrite whole: nothing is played. */
CUresult ms_back_for_overwrite(struct ms_block *block, size_t begin, size_t end);

#endif
