/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/version.h"

const char ms_version[] = METASHARD_VERSION;
