/* SPDX-License-Identifier: Apache-2.0 */
/* list-tensors CHECKPOINT: its tensors in their order, with the place of their bytes, as one JSON
 * document. */
#include <stdio.h>

#include "runtime/checkpoint/checkpoint.h"
#include "tools/plan/plan_writer.h"

static void put_tensor(struct writer *tensors, struct ms_tensor tensor)
{
    struct writer one = json_begin(tensors, NULL, '{', true);
    put_string(&one, "name", tensor.name);
    put_string(&one, "dtype", ms_dtype_names[tensor.dtype]);
    plan_writer_shape(&one, &tensor);
    put_string(&one, "file", tensor.file);
    put_number(&one, "offset", tensor.offset);
    put_number(&one, "bytes", tensor.bytes);
    json_end(&one, '}');
}

int main(int argc, char **argv)
{
    struct ms_checkpoint *checkpoint;
    struct ms_fault fault;
    if (argc != 2 || !ms_checkpoint_open(argv[1], &checkpoint, &fault)) {
        fprintf(stderr, "%s\n", argc != 2 ? "usage: list-tensors CHECKPOINT" : fault.text);
        return argc != 2 ? 2 : 1;
    }
    struct writer document = json_document(stdout);
    struct writer tensors = json_begin(&document, "tensors", '[', false);
    for (size_t i = 0; i < ms_checkpoint_count(checkpoint); i++)
        put_tensor(&tensors, ms_checkpoint_tensor(checkpoint, i));
    json_end(&tensors, ']');
    json_document_end(&document);
    ms_checkpoint_close(checkpoint);
    return 0;
}
