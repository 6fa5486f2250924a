/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/pickle.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"

/* The argument that follows the byte of an opcode; numbers are little-endian. */
enum argument_kind {
    NOTHING,
    NUMBER_8,
    NUMBER_16,
    NUMBER_32,
    NUMBER_64,
    SIGNED_32,
    BYTES_8, /* a length of this many bits, then that many bytes */
    BYTES_32,
    BYTES_64,
    TWO_LINES
};

struct argument {
    unsigned char opcode;
    uint64_t number;
    uint32_t at, length; /* the bytes, or the first line */
    uint32_t second;     /* length of the second line */
};

/* Indices of values. */
struct numbers {
    uint32_t *number;
    size_t count, capacity;
};

/*
 * The machine of Python's Lib/pickle.py. Each byte makes at most a few values, and each pushed
 * value becomes at most one cell, so memory is proportional to the text. But a byte of text may
 * take 40 bytes of memory, so no list grows beyond MS_PICKLE_MAX_VALUES, or twice that many cells.
 */
struct unpickler {
    const struct ms_fault_context *reading;
    struct ms_pickle pickle;
    size_t bytes, opcode, next; /* size of the text; offset of the opcode; end of what was read */
    struct argument argument;   /* of the opcode */
    size_t value_capacity, cell_capacity;
    struct numbers stack;
    struct numbers marks; /* heights of the stack */
    struct numbers memo;  /* value + 1; 0: not set */
    size_t memo_filled;
    bool is_done;
};

struct opcode {
    char name[17]; /* "": no such opcode */
    enum argument_kind argument;
    /* NULL: torch.save does not write this opcode. */
    bool (*run)(struct unpickler *);
};

/* --- the effect of each opcode on the stack */

static bool fault(const struct unpickler *machine, const char *text)
{
    const struct ms_place file = {NULL, "data.pkl", 0}, at = {&file, NULL, machine->opcode};
    ms_fault_at(machine->reading, &at, "%s", text);
    return false;
}

static bool has_room(const struct unpickler *machine, size_t count, size_t most)
{
    return count < most || fault(machine, "expected fewer values");
}

static bool add(struct unpickler *machine, struct numbers *numbers, uint32_t number)
{
    if (!has_room(machine, numbers->count, MS_PICKLE_MAX_VALUES))
        return false;
    if (!MS_ARRAY_GROW(numbers->number, numbers->count, numbers->capacity))
        return fault(machine, "out of memory");
    numbers->number[numbers->count++] = number;
    return true;
}

static bool make(struct unpickler *machine, struct ms_value value)
{
    struct ms_pickle *pickle = &machine->pickle;
    if (!has_room(machine, pickle->value_count, MS_PICKLE_MAX_VALUES))
        return false;
    if (!MS_ARRAY_GROW(pickle->values, pickle->value_count, machine->value_capacity))
        return fault(machine, "out of memory");
    pickle->values[pickle->value_count++] = value;
    return true;
}

static bool push(struct unpickler *machine, struct ms_value value)
{
    return make(machine, value) && add(machine, &machine->stack, machine->pickle.value_count - 1);
}

static bool add_item(struct unpickler *machine, uint32_t to, uint32_t item)
{
    struct ms_pickle *pickle = &machine->pickle;
    /* Index 0 means no cell. */
    if (pickle->cell_count == 0)
        pickle->cell_count = 1;
    if (!has_room(machine, pickle->cell_count, 2 * (size_t)MS_PICKLE_MAX_VALUES))
        return false;
    if (!MS_ARRAY_GROW(pickle->cells, pickle->cell_count, machine->cell_capacity))
        return fault(machine, "out of memory");
    struct ms_value *value = &pickle->values[to];
    const uint32_t cell = pickle->cell_count++;
    pickle->cells[cell] = (struct ms_cell){item, 0};
    if (value->first == 0)
        value->first = cell;
    else
        pickle->cells[value->last].next = cell;
    value->last = cell;
    return true;
}

/* The height below which nothing may be popped. */
static size_t floor_of(const struct unpickler *machine)
{
    return machine->marks.count > 0 ? machine->marks.number[machine->marks.count - 1] : 0;
}

static bool has(const struct unpickler *machine, size_t count)
{
    return machine->stack.count - floor_of(machine) >= count ||
           fault(machine, "expected more values on the stack");
}

static uint32_t top(const struct unpickler *machine)
{
    return machine->stack.number[machine->stack.count - 1];
}

static uint32_t pop(struct unpickler *machine)
{
    return machine->stack.number[--machine->stack.count];
}

/* The stack from this height; NULL before the first push. */
static const uint32_t *items_from(const struct unpickler *machine, size_t height)
{
    return machine->stack.number != NULL ? machine->stack.number + height : NULL;
}

/* Pops the stack down to the last mark. The items are valid until the next push. */
static bool pop_mark(struct unpickler *machine, const uint32_t **items_out, size_t *count_out)
{
    if (machine->marks.count == 0)
        return fault(machine, "expected a mark on the stack");
    const size_t height = machine->marks.number[--machine->marks.count];
    *items_out = items_from(machine, height);
    *count_out = machine->stack.count - height;
    machine->stack.count = height;
    return true;
}

static bool run_proto(struct unpickler *machine)
{
    return machine->argument.number <= 5 || fault(machine, "expected a protocol of at most 5");
}

static bool run_frame(struct unpickler *machine)
{
    return machine->argument.number <= machine->bytes - machine->next ||
           fault(machine, "expected a frame that ends in the file");
}

static bool run_stop(struct unpickler *machine)
{
    if (!has(machine, 1))
        return false;
    machine->pickle.top = pop(machine);
    machine->is_done = true;
    return machine->next == machine->bytes || fault(machine, "expected nothing after STOP");
}

static bool run_mark(struct unpickler *machine)
{
    return add(machine, &machine->marks, (uint32_t)machine->stack.count);
}

static bool run_pop_mark(struct unpickler *machine)
{
    const uint32_t *items;
    size_t count;
    return pop_mark(machine, &items, &count);
}

/* Pops a value, or a mark with nothing above it. */
static bool run_pop(struct unpickler *machine)
{
    if (machine->marks.count > 0 && machine->stack.count == floor_of(machine))
        return run_pop_mark(machine);
    if (!has(machine, 1))
        return false;
    pop(machine);
    return true;
}

static bool run_dup(struct unpickler *machine)
{
    return has(machine, 1) && add(machine, &machine->stack, top(machine));
}

/* Value 0 stands for all of kind MS_VALUE_OTHER. */
static bool run_other(struct unpickler *machine)
{
    return add(machine, &machine->stack, 0);
}

static bool push_number(struct unpickler *machine, uint64_t number)
{
    return push(machine, (struct ms_value){.kind = MS_VALUE_INT, .number = (int64_t)number});
}

static bool run_number(struct unpickler *machine)
{
    return push_number(machine, machine->argument.number);
}

/* Two's complement, little-endian. */
static bool run_long(struct unpickler *machine)
{
    const uint32_t length = machine->argument.length;
    if (length > 8)
        return run_other(machine);
    const unsigned char *at = (const unsigned char *)machine->pickle.text + machine->argument.at;
    uint64_t number = length > 0 && at[length - 1] >= 0x80 ? UINT64_MAX : 0;
    for (uint32_t i = length; i-- > 0;)
        number = number << 8 | at[i];
    return push_number(machine, number);
}

static bool push_text(struct unpickler *machine, uint32_t at, uint32_t length)
{
    return push(machine, (struct ms_value){.kind = MS_VALUE_TEXT, .text = {at, length}});
}

static bool run_text(struct unpickler *machine)
{
    return push_text(machine, machine->argument.at, machine->argument.length);
}

static bool run_list(struct unpickler *machine)
{
    return push(machine, (struct ms_value){.kind = MS_VALUE_LIST});
}

static bool run_dict(struct unpickler *machine)
{
    return push(machine, (struct ms_value){.kind = MS_VALUE_DICT});
}

/* The items stay on the stack until the tuple is pushed over them. */
static bool push_tuple(struct unpickler *machine, const uint32_t *items, size_t count)
{
    if (!make(machine, (struct ms_value){.kind = MS_VALUE_TUPLE}))
        return false;
    const uint32_t tuple = machine->pickle.value_count - 1;
    for (size_t i = 0; i < count; i++) {
        if (!add_item(machine, tuple, items[i]))
            return false;
    }
    return add(machine, &machine->stack, tuple);
}

static bool run_tuple(struct unpickler *machine)
{
    const uint32_t *items;
    size_t count;
    return pop_mark(machine, &items, &count) && push_tuple(machine, items, count);
}

/* EMPTY_TUPLE, TUPLE1, TUPLE2 and TUPLE3. */
static bool run_tuple_of(struct unpickler *machine)
{
    const size_t count = machine->argument.opcode == ')' ? 0 : machine->argument.opcode - 0x84u;
    if (!has(machine, count))
        return false;
    machine->stack.count -= count;
    return push_tuple(machine, items_from(machine, machine->stack.count), count);
}

/* Appends to a list. Ignores items appended to another object, which may do anything with them. */
static bool append(struct unpickler *machine, const uint32_t *items, size_t count)
{
    const uint32_t to = top(machine);
    const enum ms_value_kind kind = machine->pickle.values[to].kind;
    if (kind != MS_VALUE_LIST && kind != MS_VALUE_CALL)
        return fault(machine, "expected a list");
    for (size_t i = 0; i < count && kind == MS_VALUE_LIST; i++) {
        if (!add_item(machine, to, items[i]))
            return false;
    }
    return true;
}

static bool run_append(struct unpickler *machine)
{
    if (!has(machine, 2))
        return false;
    const uint32_t item = pop(machine);
    return append(machine, &item, 1);
}

static bool run_appends(struct unpickler *machine)
{
    const uint32_t *items;
    size_t count;
    return pop_mark(machine, &items, &count) && has(machine, 1) && append(machine, items, count);
}

static bool set_items(struct unpickler *machine, const uint32_t *items, size_t count)
{
    const uint32_t to = top(machine);
    const enum ms_value_kind kind = machine->pickle.values[to].kind;
    if ((kind != MS_VALUE_DICT && kind != MS_VALUE_CALL) || count % 2 != 0)
        return fault(machine, "expected a dict, and pairs of key and value");
    for (size_t i = 0; i < count; i++) {
        if (!add_item(machine, to, items[i]))
            return false;
    }
    return true;
}

static bool run_set_item(struct unpickler *machine)
{
    if (!has(machine, 3))
        return false;
    machine->stack.count -= 2;
    const uint32_t *items = items_from(machine, machine->stack.count);
    return set_items(machine, items, 2);
}

static bool run_set_items(struct unpickler *machine)
{
    const uint32_t *items;
    size_t count;
    return pop_mark(machine, &items, &count) && has(machine, 1) && set_items(machine, items, count);
}

/* Adds to a set, whose items are ignored. */
static bool run_add_items(struct unpickler *machine)
{
    return run_pop_mark(machine) && has(machine, 1);
}

static bool run_frozen_set(struct unpickler *machine)
{
    return run_pop_mark(machine) && run_other(machine);
}

static bool run_stack_global(struct unpickler *machine)
{
    if (!has(machine, 2))
        return false;
    const uint32_t name = pop(machine), module = pop(machine);
    return push(machine, (struct ms_value){.kind = MS_VALUE_GLOBAL, .global = {module, name}});
}

static bool run_global(struct unpickler *machine)
{
    const struct argument lines = machine->argument;
    return push_text(machine, lines.at, lines.length) &&
           push_text(machine, lines.at + lines.length + 1, lines.second) &&
           run_stack_global(machine);
}

/* REDUCE and NEWOBJ: a call of a function or a class with arguments. */
static bool run_call(struct unpickler *machine)
{
    if (!has(machine, 2))
        return false;
    const uint32_t arguments = pop(machine), function = pop(machine);
    return push(machine, (struct ms_value){.kind = MS_VALUE_CALL, .call = {function, arguments}});
}

/* NEWOBJ_EX: ignores the keyword arguments. */
static bool run_call_named(struct unpickler *machine)
{
    if (!has(machine, 3))
        return false;
    pop(machine);
    return run_call(machine);
}

/* Ignores the state of an object: its attributes. */
static bool run_build(struct unpickler *machine)
{
    if (!has(machine, 2))
        return false;
    pop(machine);
    return true;
}

static bool run_persistent(struct unpickler *machine)
{
    if (!has(machine, 1))
        return false;
    return push(machine, (struct ms_value){.kind = MS_VALUE_PERSISTENT, .id = pop(machine)});
}

static bool run_get(struct unpickler *machine)
{
    if (machine->argument.number >= machine->memo.count ||
        machine->memo.number[machine->argument.number] == 0)
        return fault(machine, "expected a memo entry that was set before");
    return add(machine, &machine->stack, machine->memo.number[machine->argument.number] - 1);
}

/* Writers number memo entries from 0, and each entry takes at least one byte. */
static bool keep(struct unpickler *machine, uint64_t index)
{
    if (!has(machine, 1))
        return false;
    if (index >= machine->bytes)
        return fault(machine, "expected fewer memo entries than bytes");
    while (machine->memo.count <= index) {
        if (!add(machine, &machine->memo, 0))
            return false;
    }
    machine->memo_filled += machine->memo.number[index] == 0;
    machine->memo.number[index] = top(machine) + 1;
    return true;
}

static bool run_put(struct unpickler *machine)
{
    return keep(machine, machine->argument.number);
}

static bool run_memoize(struct unpickler *machine)
{
    return keep(machine, machine->memo_filled);
}

/* Opcodes without a function are listed for their names. */
static const struct opcode opcodes[256] = {
    ['('] = {"MARK", NOTHING, run_mark},
    ['.'] = {"STOP", NOTHING, run_stop},
    ['0'] = {"POP", NOTHING, run_pop},
    ['1'] = {"POP_MARK", NOTHING, run_pop_mark},
    ['2'] = {"DUP", NOTHING, run_dup},
    ['F'] = {"FLOAT", NOTHING, NULL},
    ['I'] = {"INT", NOTHING, NULL},
    ['J'] = {"BININT", SIGNED_32, run_number},
    ['K'] = {"BININT1", NUMBER_8, run_number},
    ['L'] = {"LONG", NOTHING, NULL},
    ['M'] = {"BININT2", NUMBER_16, run_number},
    ['N'] = {"NONE", NOTHING, run_other},
    ['P'] = {"PERSID", NOTHING, NULL},
    ['Q'] = {"BINPERSID", NOTHING, run_persistent},
    ['R'] = {"REDUCE", NOTHING, run_call},
    ['S'] = {"STRING", NOTHING, NULL},
    ['T'] = {"BINSTRING", BYTES_32, run_text},
    ['U'] = {"SHORT_BINSTRING", BYTES_8, run_text},
    ['V'] = {"UNICODE", NOTHING, NULL},
    ['X'] = {"BINUNICODE", BYTES_32, run_text},
    ['a'] = {"APPEND", NOTHING, run_append},
    ['b'] = {"BUILD", NOTHING, run_build},
    ['c'] = {"GLOBAL", TWO_LINES, run_global},
    ['d'] = {"DICT", NOTHING, NULL},
    ['e'] = {"APPENDS", NOTHING, run_appends},
    ['g'] = {"GET", NOTHING, NULL},
    ['h'] = {"BINGET", NUMBER_8, run_get},
    ['i'] = {"INST", NOTHING, NULL},
    ['j'] = {"LONG_BINGET", NUMBER_32, run_get},
    ['l'] = {"LIST", NOTHING, NULL},
    ['o'] = {"OBJ", NOTHING, NULL},
    ['p'] = {"PUT", NOTHING, NULL},
    ['q'] = {"BINPUT", NUMBER_8, run_put},
    ['r'] = {"LONG_BINPUT", NUMBER_32, run_put},
    ['s'] = {"SETITEM", NOTHING, run_set_item},
    ['t'] = {"TUPLE", NOTHING, run_tuple},
    ['u'] = {"SETITEMS", NOTHING, run_set_items},
    ['}'] = {"EMPTY_DICT", NOTHING, run_dict},
    [']'] = {"EMPTY_LIST", NOTHING, run_list},
    [')'] = {"EMPTY_TUPLE", NOTHING, run_tuple_of},
    ['B'] = {"BINBYTES", BYTES_32, run_other},
    ['C'] = {"SHORT_BINBYTES", BYTES_8, run_other},
    ['G'] = {"BINFLOAT", NUMBER_64, run_other},
    [0x80] = {"PROTO", NUMBER_8, run_proto},
    [0x81] = {"NEWOBJ", NOTHING, run_call},
    [0x82] = {"EXT1", NOTHING, NULL},
    [0x83] = {"EXT2", NOTHING, NULL},
    [0x84] = {"EXT4", NOTHING, NULL},
    [0x85] = {"TUPLE1", NOTHING, run_tuple_of},
    [0x86] = {"TUPLE2", NOTHING, run_tuple_of},
    [0x87] = {"TUPLE3", NOTHING, run_tuple_of},
    [0x88] = {"NEWTRUE", NOTHING, run_other},
    [0x89] = {"NEWFALSE", NOTHING, run_other},
    [0x8a] = {"LONG1", BYTES_8, run_long},
    [0x8b] = {"LONG4", BYTES_32, run_long},
    [0x8c] = {"SHORT_BINUNICODE", BYTES_8, run_text},
    [0x8d] = {"BINUNICODE8", BYTES_64, run_text},
    [0x8e] = {"BINBYTES8", BYTES_64, run_other},
    [0x8f] = {"EMPTY_SET", NOTHING, run_other},
    [0x90] = {"ADDITEMS", NOTHING, run_add_items},
    [0x91] = {"FROZENSET", NOTHING, run_frozen_set},
    [0x92] = {"NEWOBJ_EX", NOTHING, run_call_named},
    [0x93] = {"STACK_GLOBAL", NOTHING, run_stack_global},
    [0x94] = {"MEMOIZE", NOTHING, run_memoize},
    [0x95] = {"FRAME", NUMBER_64, run_frame},
    [0x96] = {"BYTEARRAY8", BYTES_64, run_other},
    [0x97] = {"NEXT_BUFFER", NOTHING, NULL},
    [0x98] = {"READONLY_BUFFER", NOTHING, NULL},
};

/* --- reading */

static bool unknown_opcode(const struct unpickler *machine, unsigned char code)
{
    char name[64], hex[8];
    snprintf(hex, sizeof(hex), "0x%02x", code);
    snprintf(name, sizeof(name), "expected an opcode of torch.save, found %s",
             opcodes[code].name[0] != '\0' ? opcodes[code].name : hex);
    return fault(machine, name);
}

static bool read_number(struct unpickler *machine, int bytes, uint64_t *number_out)
{
    if ((size_t)bytes > machine->bytes - machine->next)
        return fault(machine, "expected more bytes of the opcode's argument");
    uint64_t number = 0;
    for (int i = bytes; i-- > 0;)
        number = number << 8 | (unsigned char)machine->pickle.text[machine->next + (size_t)i];
    machine->next += (size_t)bytes;
    *number_out = number;
    return true;
}

static bool read_bytes(struct unpickler *machine, int length_bytes)
{
    struct argument *argument = &machine->argument;
    uint64_t length = 0;
    if (!read_number(machine, length_bytes, &length))
        return false;
    if (length > machine->bytes - machine->next)
        return fault(machine, "expected more bytes of the opcode's argument");
    argument->at = (uint32_t)machine->next;
    argument->length = (uint32_t)length;
    machine->next += length;
    return true;
}

static bool read_line(struct unpickler *machine, uint32_t *length_out)
{
    const char *from = machine->pickle.text + machine->next;
    const char *end = memchr(from, '\n', machine->bytes - machine->next);
    if (end == NULL)
        return fault(machine, "expected the end of a line");
    *length_out = (uint32_t)(end - from);
    machine->next += (size_t)(end - from) + 1;
    return true;
}

static bool read_argument(struct unpickler *machine, enum argument_kind kind)
{
    struct argument *argument = &machine->argument;
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

static bool run(struct unpickler *machine)
{
    while (!machine->is_done) {
        machine->opcode = machine->next;
        if (machine->next == machine->bytes)
            return fault(machine, "expected STOP before the end");
        const unsigned char code = (unsigned char)machine->pickle.text[machine->next++];
        const struct opcode *opcode = &opcodes[code];
        machine->argument = (struct argument){.opcode = code};
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
    struct unpickler machine = {.reading = reading, .pickle = {.text = text}, .bytes = bytes};
    bool is_good = bytes <= MS_PICKLE_MAX_BYTES || fault(&machine, "expected at most 100 MB");
    is_good = is_good && make(&machine, (struct ms_value){.kind = MS_VALUE_OTHER}) && run(&machine);
    ms_heap_free(machine.stack.number);
    ms_heap_free(machine.marks.number);
    ms_heap_free(machine.memo.number);
    if (is_good)
        *pickle_out = machine.pickle;
    else
        ms_pickle_cleanup(&machine.pickle);
    return is_good;
}
