/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled once for each library: the driver version that this one pretends to be. */
extern const int sim_built_version;
const int sim_built_version = SIM_BUILT_VERSION;
