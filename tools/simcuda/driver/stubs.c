/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every symbol that the driver exports, defined weakly: the files that simulate a call define it
 * again, strongly, and win. A stub logs its call like any other, and refuses it.
 *
 * cuda.h is left out on purpose. Its macros rename the symbols, and its prototypes would have to be
 * repeated here; a stub reads none of its arguments, so it needs neither.
 */
enum sim_entry {
#define SIM_FUNCTION(symbol, base, version, per_thread) SIM_ENTRY_##symbol,
#include "tools/simcuda/driver/functions.def"
#undef SIM_FUNCTION
    SIM_ENTRY_COUNT
};

int sim_stub_refuse(int entry);           /* core.c */
extern void *const sim_entry_addresses[]; /* declared for lookup.c, which includes cuda.h */

#define SIM_FUNCTION(symbol, base, version, per_thread)           \
    int symbol(void);                                             \
    __attribute__((weak, visibility("default"))) int symbol(void) \
    {                                                             \
        return sim_stub_refuse(SIM_ENTRY_##symbol);               \
    }
#include "tools/simcuda/driver/functions.def"
#undef SIM_FUNCTION

/* With -Bsymbolic these are the driver's own functions, whatever is preloaded. */
void *const sim_entry_addresses[SIM_ENTRY_COUNT] = {
#define SIM_FUNCTION(symbol, base, version, per_thread) (void *)symbol,
#include "tools/simcuda/driver/functions.def"
#undef SIM_FUNCTION
};
