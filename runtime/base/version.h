/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* MetaShard's version, from meson.build. */
extern const char ms_version[];
