/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/plan/plan_writer.h"

#include <stdlib.h>

bool plan_writer_begin(struct plan_writer *writer, const struct ms_mesh *mesh)
{
    *writer = (struct plan_writer){0};
    FILE *file = open_memstream(&writer->text, &writer->bytes);
    if (file == NULL)
        return false;
    writer->plan = json_document(file);
    put_string(&writer->plan, "format", "metashard-plan/1");
    struct writer sizes = json_begin(&writer->plan, "mesh", '{', true);
    for (unsigned i = 0; i < mesh->dims; i++)
        put_number(&sizes, mesh->name[i], mesh->size[i]);
    json_end(&sizes, '}');
    writer->entries = json_begin(&writer->plan, "tensors", '[', false);
    return true;
}

char *plan_writer_end(struct plan_writer *writer)
{
    FILE *file = writer->plan.file;
    json_end(&writer->entries, ']');
    json_document_end(&writer->plan);
    const bool is_good = ferror(file) == 0 && !writer->is_short;
    if (fclose(file) == 0 && is_good)
        return writer->text;
    free(writer->text);
    return NULL;
}

void plan_writer_text(struct plan_writer *writer, struct writer *object, const char *key,
                      char *text)
{
    if (text != NULL)
        put_string(object, key, text);
    else
        writer->is_short = true;
    free(text);
}

void plan_writer_shape(struct writer *object, const struct ms_tensor *tensor)
{
    struct writer list = json_begin(object, "shape", '[', true);
    for (unsigned i = 0; i < tensor->dims; i++)
        put_number(&list, NULL, tensor->shape[i]);
    json_end(&list, ']');
}
