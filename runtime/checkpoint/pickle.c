/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/pickle.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/checkpoint/pickle_internal.h"

static bool unknown_opcode(const struct ms_unpickler *machine, unsigned char code)
{
    char name[64], hex[8];
    snprintf(hex, sizeof(hex), "0x%02x", code);
    snprintf(name, sizeof(name), "expected an opcode of torch.save, found %s",
             ms_opcodes[code].name != NULL ? ms_opcodes[code].name : hex);
    return ms_unpickler_fault(machine, name);
}

static bool read_number(struct ms_unpickler *machine, int bytes, uint64_t *number_out)
{
    if ((size_t)bytes > machine->bytes - machine->next)
        return ms_unpickler_fault(machine, "expected more bytes of the opcode's argument");
    uint64_t number = 0;
    for (int i = bytes; i-- > 0;)
        number = number << 8 | (unsigned char)machine->pickle.text[machine->next + (size_t)i];
    machine->next += (size_t)bytes;
    *number_out = number;
    return true;
}

static bool read_bytes(struct ms_unpickler *machine, int length_bytes)
{
    struct ms_argument *argument = &machine->argument;
    uint64_t length = 0;
    if (!read_number(machine, length_bytes, &length))
        return false;
    if (length > machine->bytes - machine->next)
        return ms_unpickler_fault(machine, "expected more bytes of the opcode's argument");
    argument->at = (uint32_t)machine->next;
    argument->length = (uint32_t)length;
    machine->next += length;
    return true;
}

static bool read_line(struct ms_unpickler *machine, uint32_t *length_out)
{
    const char *from = machine->pickle.text + machine->next;
    const char *end = memchr(from, '\n', machine->bytes - machine->next);
    if (end == NULL)
        return ms_unpickler_fault(machine, "expected the end of a line");
    *length_out = (uint32_t)(end - from);
    machine->next += (size_t)(end - from) + 1;
    return true;
}

static bool read_argument(struct ms_unpickler *machine, enum ms_argument_kind kind)
{
    struct ms_argument *argument = &machine->argument;
    switch (kind) {
    case NOTHING:
        return true;
    case NUMBER_8:
    case NUMBER_16:
    case NUMBER_32:
    case NUMBER_64:
        return read_number(machine, 1 << (kind - NUMBER_8), &argument->number);
    case SIGNED_32:
        if (!read_number(machine, 4, &argument->number))
            return false;
        argument->number = (uint64_t)(int64_t)(int32_t)argument->number;
        return true;
    case BYTES_8:
        return read_bytes(machine, 1);
    case BYTES_32:
        return read_bytes(machine, 4);
    case BYTES_64:
        return read_bytes(machine, 8);
    case TWO_LINES:
        argument->at = (uint32_t)machine->next;
        return read_line(machine, &argument->length) && read_line(machine, &argument->second);
    }
    return false;
}

static bool run(struct ms_unpickler *machine)
{
    while (!machine->is_done) {
        machine->opcode = machine->next;
        if (machine->next == machine->bytes)
            return ms_unpickler_fault(machine, "expected STOP before the end");
        const unsigned char code = (unsigned char)machine->pickle.text[machine->next++];
        const struct ms_opcode *opcode = &ms_opcodes[code];
        machine->argument = (struct ms_argument){.opcode = code};
        if (opcode->run == NULL)
            return unknown_opcode(machine, code);
        if (!read_argument(machine, opcode->argument) || !opcode->run(machine))
            return false;
    }
    return true;
}

bool ms_pickle_read(const struct ms_fault_context *reading, const char *text, size_t bytes,
                    struct ms_pickle *pickle_out)
{
    struct ms_unpickler machine = {.reading = reading, .pickle = {.text = text}, .bytes = bytes};
    bool is_good =
        bytes <= MS_PICKLE_MAX_BYTES || ms_unpickler_fault(&machine, "expected at most 100 MB");
    is_good = is_good && ms_unpickler_make(&machine, MS_VALUE_OTHER) != NULL && run(&machine);
    ms_heap_free(machine.stack.number);
    ms_heap_free(machine.marks.number);
    ms_heap_free(machine.memo.number);
    if (is_good)
        *pickle_out = machine.pickle;
    else
        ms_pickle_cleanup(&machine.pickle);
    return is_good;
}

void ms_pickle_cleanup(struct ms_pickle *pickle)
{
    ms_heap_free(pickle->values);
    ms_heap_free(pickle->cells);
}

bool ms_pickle_is_text(const struct ms_pickle *pickle, uint32_t value, const char *text)
{
    const struct ms_value *found = &pickle->values[value];
    return found->kind == MS_VALUE_TEXT && found->text.length == strlen(text) &&
           memcmp(pickle->text + found->text.at, text, found->text.length) == 0;
}

bool ms_pickle_is_global(const struct ms_pickle *pickle, uint32_t value, const char *module,
                         const char *name)
{
    const struct ms_value *found = &pickle->values[value];
    return found->kind == MS_VALUE_GLOBAL &&
           ms_pickle_is_text(pickle, found->global.module, module) &&
           ms_pickle_is_text(pickle, found->global.name, name);
}

bool ms_pickle_items(const struct ms_pickle *pickle, uint32_t tuple, uint32_t *items, int count)
{
    if (pickle->values[tuple].kind != MS_VALUE_TUPLE)
        return false;
    uint32_t cell = pickle->values[tuple].first;
    for (int i = 0; i < count; i++, cell = pickle->cells[cell].next) {
        if (cell == 0)
            return false;
        items[i] = pickle->cells[cell].value;
    }
    return true;
}
