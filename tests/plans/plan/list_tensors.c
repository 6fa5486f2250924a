/* SPDX-License-Identifier: Apache-2.0 */
/* list-tensors CHECKPOINT: its tensors in their order, with the place of their bytes, as one JSON
 * document. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "runtime/checkpoint/checkpoint.h"

static json_t *described(struct ms_tensor tensor)
{
    json_t *shape = json_array();
    for (unsigned i = 0; i < tensor.dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor.shape[i]));
    return json_pack("{s:s,s:s,s:o,s:s,s:I,s:I}", "name", tensor.name, "dtype",
                     ms_dtype_names[tensor.dtype], "shape", shape, "file", tensor.file, "offset",
                     (json_int_t)tensor.offset, "bytes", (json_int_t)tensor.bytes);
}

int main(int argc, char **argv)
{
    struct ms_checkpoint *checkpoint;
    struct ms_fault fault;
    if (argc != 2 || !ms_checkpoint_open(argv[1], &checkpoint, &fault)) {
        fprintf(stderr, "%s\n", argc != 2 ? "usage: list-tensors CHECKPOINT" : fault.text);
        return argc != 2 ? 2 : 1;
    }
    json_t *tensors = json_array();
    for (size_t i = 0; i < ms_checkpoint_count(checkpoint); i++)
        json_array_append_new(tensors, described(ms_checkpoint_tensor(checkpoint, i)));
    json_t *document = json_pack("{s:o,s:I}", "tensors", tensors, "skipped",
                                 (json_int_t)ms_checkpoint_skipped(checkpoint));
    json_dumpf(document, stdout, JSON_INDENT(1));
    json_decref(document);
    ms_checkpoint_close(checkpoint);
    return 0;
}
