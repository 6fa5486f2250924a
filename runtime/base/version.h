/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The version of MetaShard, as meson.build has it. */
extern const char ms_version[];
