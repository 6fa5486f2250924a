/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/counted_heap.h"
#include "tools/simcuda/kernels/torch_kernels.h"
#include "tests/unit/between.h"

#define FILL TORCH_NAME(TORCH_FILL)
#define ADD_OF_TWO                                                                              \
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3E" \
    "EEEviT0_T1_"

static size_t most_read = SIZE_MAX; /* at a time */
static int read_count;
static size_t room = (1 << 20) + 1; /* that the reader has */
WRAPS(read);
ssize_t __wrap_read(int file, void *bytes, size_t count)
{
    read_count++;
    CHECK(count <= room);
    const ssize_t got = __real_read(file, bytes, count < most_read ? count : most_read);
    room -= got > 0 ? (size_t)got : 0;
    return got;
}

/* A rules file with this text; removed by the caller. */
static const char *write_rules(const char *text)
{
    static char path[64];
    snprintf(path, sizeof(path), "/tmp/metashard-rules-XXXXXX");
    const int file = mkstemp(path);
    CHECK(file >= 0);
    CHECK_EQ(write(file, text, strlen(text)), strlen(text));
    close(file);
    return path;
}

/* Reads the rules with stderr in a file, and returns what was complained of. */
static const char *complaints_of(const char *path)
{
    static char text[4096];
    FILE *file = tmpfile();
    const int saved = dup(STDERR_FILENO);
    room = (1 << 20) + 1;
    dup2(fileno(file), STDERR_FILENO);
    ms_rules_read(path);
    dup2(saved, STDERR_FILENO);
    close(saved);
    const ssize_t got = pread(fileno(file), text, sizeof(text) - 1, 0);
    CHECK(got >= 0);
    text[got] = '\0';
    fclose(file);
    return text;
}

MS_TEST(built_in_rules_know_the_families_of_pytorch)
{
    CHECK_EQ(strlen(complaints_of("")), 0);
    static const char *const write_only[] = {
        TORCH_NAME(TORCH_FILL),    TORCH_NAME(TORCH_FILL_LONG),
        TORCH_NAME(TORCH_UNIFORM), TORCH_NAME(TORCH_UNIFORM_STRIDED),
        TORCH_NAME(TORCH_NORMAL),  TORCH_NAME(TORCH_ARANGE)};
    static const char *const in_place[] = {TORCH_NAME(TORCH_MUL), TORCH_NAME(TORCH_ADD),
                                           TORCH_NAME(TORCH_CLAMP_DENSE)};
    for (size_t i = 0; i < sizeof(write_only) / sizeof(write_only[0]); i++)
        CHECK_EQ(ms_rules_match(write_only[i]), MS_RULE_WRITE_ONLY);
    for (size_t i = 0; i < sizeof(in_place) / sizeof(in_place[0]); i++)
        CHECK_EQ(ms_rules_match(in_place[i]), MS_RULE_IN_PLACE);
    CHECK_EQ(ms_rules_match(TORCH_NAME(TORCH_COPY)), MS_RULE_FROM_OTHER);
}

/* From the wheels of PyTorch 2.15 and 2.11: casts in loops over any strides. */
MS_TEST(built_in_rules_know_casts)
{
#define LOOP "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZNS0_"
#define BEHIND "_EEvS4_RKT_EUliE_EEviT1_"
    static const char *const casts[] = {
        "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastIZNS0_27"
        "converting_copy_kernel_cudaIN3c108BFloat16EfEEvRNS_18TensorIteratorBaseEEUlS5_E_EEvS7_RKT_"
        "EUliE_EEviT1_",
        LOOP "24float16_copy_kernel_cudaERNS_18TensorIteratorBaseEEUlfE" BEHIND,
        LOOP "25bfloat16_copy_kernel_cudaERNS_18TensorIteratorBaseEEUlfE" BEHIND,
        LOOP "23float8_copy_kernel_cudaERNS_18TensorIteratorBaseEEUlN3c104HalfEE0" BEHIND};
    ms_rules_read("");
    for (size_t i = 0; i < sizeof(casts) / sizeof(casts[0]); i++)
        CHECK_EQ(ms_rules_match(casts[i]), MS_RULE_FROM_OTHER);
    CHECK_EQ(ms_rules_match(LOOP "20copysign_kernel_cudaERNS_18TensorIteratorBaseEEUlfE" BEHIND),
             MS_RULE_RUN);
}

/* From the wheel of PyTorch 2.15: fills and scalings in loops over any strides. */
MS_TEST(built_in_rules_know_parts_of_tensors)
{
#define PART "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastINS0_"
#define SCALED "UnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEEEEvRNS_18TensorIterator"
    ms_rules_read("");
    CHECK_EQ(ms_rules_match(PART "11FillFunctorIfEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_"),
             MS_RULE_WRITE_ONLY);
    CHECK_EQ(ms_rules_match(PART "13A" SCALED "BaseERKT_EUliE_EEviT1_"), MS_RULE_IN_PLACE);
    CHECK_EQ(ms_rules_match(PART "13B" SCALED "BaseERKT_EUliE_EEviT1_"), MS_RULE_IN_PLACE);
    CHECK_EQ(ms_rules_match(PART "13BinaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEEEEvRNS_"
                                 "18TensorIteratorBaseERKT_EUliE_EEviT1_"),
             MS_RULE_RUN);
}

/* From the wheel of PyTorch 2.15. */
STORY_ALONE(built_in_rules_know_transpositions, ms_rules_read(""),
            EQUALS(ms_rules_match("_ZN2at6native39_GLOBAL__N__b5857774_7_Copy_cu_11f9d6c527"
                                  "transpose_copy_tiled_kernelIjLi1ELi4ELi64ELb0EEEvPKT_PS3_llll"),
                   MS_RULE_FROM_FIRST))

/* From the wheel of PyTorch 2.15: loops whose functor has pointers of its own. */
MS_TEST(functors_with_pointers_run)
{
    static const char *const loops[] = {
        "_ZN2at6native29vectorized_elementwise_kernelILi2EZZZNS0_46_GLOBAL__N__3be26839_13_"
        "AmpKernels_cu_3810c27339_amp_non_finite_check_and_unscale_cuda_ERNS_6TensorES4_RKS3_"
        "ENKUlvE_clEvENKUlvE_clEvEUldE_St5arrayIPcLm2EELb0EEEviT0_T1_",
        "_ZN2at6native29vectorized_elementwise_kernelILi2EZZNS0_74_GLOBAL__N__dc35d8c1_35_"
        "SparseBinaryOpIntersectionKernel_cu_e5d96c45_6436742_sparse_binary_op_intersection_"
        "kernel_implINS2_18CUDAKernelLauncherENS2_36CUDAValueSelectionIntersectionKernelINS2_"
        "5MulOpEEElLl0EEEvRNS_6TensorERKS8_SB_RKSt6vectorIlSaIlEERKSt8optionalIS8_ESK_bbENKUlvE3_"
        "clEvEUllE_St5arrayIPcLm2EELb0EEEviT0_T1_",
        "_ZN2at6native29vectorized_elementwise_kernelILi2EZZNS0_62_GLOBAL__N__5a78220c_23_"
        "FlattenIndicesKernel_cu_e5d96c45_5093821_flatten_indices_implINS2_"
        "18CUDAKernelLauncherElLl0"
        "EEENS_6TensorERKS5_N3c108ArrayRefIlEEENKUlvE0_clEvEUllE_St5arrayIPcLm2EELb0EEEviT0_T1_"};
    ms_rules_read("");
    for (size_t i = 0; i < sizeof(loops) / sizeof(loops[0]); i++)
        CHECK_EQ(ms_rules_match(loops[i]), MS_RULE_RUN);
}

/* What PyTorch compiles while it runs has no mangled name (NVIDIA H200, PyTorch 2.11). */
MS_TEST(erfinv_is_in_place)
{
    ms_rules_read("");
    CHECK_EQ(ms_rules_match("erfinv_kernel_vectorized4_kernel"), MS_RULE_IN_PLACE);
    CHECK_EQ(ms_rules_match("erfinv_kernel_vectorized8_kernel"), MS_RULE_IN_PLACE);
    CHECK_EQ(ms_rules_match("my_erfinv_kernel_vectorized4_kernel"), MS_RULE_RUN);
    CHECK_EQ(ms_rules_match("gcd_kernel_vectorized4_kernel"), MS_RULE_RUN);
}

MS_TEST(other_kernels_run)
{
    ms_rules_read("");
    CHECK_EQ(ms_rules_match(ADD_OF_TWO), MS_RULE_RUN);
    CHECK_EQ(ms_rules_match(TORCH_NAME(TORCH_ROW_SUM)), MS_RULE_RUN);
    CHECK_EQ(ms_rules_match(TORCH_NAME(TORCH_CLAMP)), MS_RULE_RUN);
    CHECK_EQ(ms_rules_match("?"), MS_RULE_RUN);
    CHECK_EQ(ms_rules_match(""), MS_RULE_RUN);
}

MS_TEST(rules_of_the_user_come_first)
{
    const char *path = write_rules("# mine\n\n\twrite-only  my_*_kernel \nrun *FillFunctor*\r\n");
    CHECK_EQ(strlen(complaints_of(path)), 0);
    unlink(path);
    CHECK_EQ(ms_rules_match("my_first_kernel"), MS_RULE_WRITE_ONLY);
    CHECK_EQ(ms_rules_match("my_kernel"), MS_RULE_RUN);
    CHECK_EQ(ms_rules_match(FILL), MS_RULE_RUN);
    CHECK_EQ(ms_rules_match(TORCH_NAME(TORCH_MUL)), MS_RULE_IN_PLACE);
}

static bool no(void)
{
    return false;
}

/* The rules may not hold for a PyTorch that nobody has checked. */
MS_TEST(built_in_rules_may_not_hold)
{
    const char *path = write_rules("write-only my_*_kernel\nin-place *MulFunctor*\n");
    ms_rules_hold = no;
    ms_rules_read(path);
    unlink(path);
    CHECK_EQ(ms_rules_match(FILL), MS_RULE_RUN);
    /* Behind the user's comes the first of them. */
    CHECK_EQ(ms_rules_match(TORCH_NAME(TORCH_UNIFORM)), MS_RULE_RUN);
    CHECK_EQ(ms_rules_match("my_first_kernel"), MS_RULE_WRITE_ONLY);
    CHECK_EQ(ms_rules_match(TORCH_NAME(TORCH_MUL)), MS_RULE_IN_PLACE);
}

MS_TEST(bad_lines_are_named_and_left_out)
{
    const char *path = write_rules("write-only good\nwriteonly x\nin-place\nin-place a b\n"
                                   "in-place last");
    const char *text = complaints_of(path);
    char expected[128];
    for (int line = 2; line <= 4; line++) {
        snprintf(expected, sizeof(expected), "%s:%d: expected ", path, line);
        CHECK(strstr(text, expected) != NULL);
    }
    CHECK(strstr(text, ":1:") == NULL);
    CHECK(strstr(text, ":5:") == NULL);
    unlink(path);
    CHECK_EQ(ms_rules_match("good"), MS_RULE_WRITE_ONLY);
    CHECK_EQ(ms_rules_match("x"), MS_RULE_RUN);
    CHECK_EQ(ms_rules_match("last"), MS_RULE_IN_PLACE);
}

MS_TEST(a_file_that_is_not_there_is_one_line)
{
    const char *text = complaints_of("/nowhere/rules");
    CHECK(strstr(text, "METASHARD_KERNEL_RULES: cannot read /nowhere/rules") != NULL);
    CHECK_EQ(ms_rules_match(FILL), MS_RULE_WRITE_ONLY);
}

/* Opening a pipe would wait for whoever writes it. */
MS_TEST(a_path_of_rules_that_is_no_file_is_not_opened)
{
    char name[64];
    snprintf(name, sizeof(name), "/tmp/metashard-rules-%d", (int)getpid());
    alarm(10);
    CHECK_EQ(mkfifo(name, 0600), 0);
    const char *text = complaints_of(name);
    CHECK(strstr(text, "expected a regular file") != NULL);
    CHECK_EQ(unlink(name), 0);
    CHECK(strstr(complaints_of("/dev/zero"), "expected a regular file") != NULL);
    CHECK(strstr(complaints_of("/tmp"), "expected a regular file") != NULL);
    CHECK_EQ(ms_rules_match(FILL), MS_RULE_WRITE_ONLY);
}

/* A file of which a terabyte is a hole, one that is no text, and the largest that is read. */
MS_TEST(rules_have_an_end)
{
    enum { MOST = 1 << 20 };
    static char comment[MOST + 1];
    const char *path = write_rules("run\tfill\n");
    alarm(10);
    CHECK_EQ(truncate(path, 20), 0);
    CHECK(strstr(complaints_of(path), "expected a text") != NULL);
    CHECK_EQ(truncate(path, INT64_C(1) << 40), 0);
    CHECK(strstr(complaints_of(path), "expected at most 1 MiB") != NULL);
    unlink(path);
    memset(comment, '#', MOST);
    path = write_rules(comment);
    CHECK_EQ(strlen(complaints_of(path)), 0);
    unlink(path);
}

MS_TEST(each_class_has_its_word)
{
    static const struct {
        const char *word;
        enum ms_rule rule;
    } words[] = {{"write-only", MS_RULE_WRITE_ONLY},   {"in-place", MS_RULE_IN_PLACE},
                 {"from-other", MS_RULE_FROM_OTHER},   {"from-first", MS_RULE_FROM_FIRST},
                 {"concatenate", MS_RULE_CONCATENATE}, {"each", MS_RULE_EACH}};
    static const char *const others[] = {"in-plac", "in-placer", "n-place", "IN-PLACE", "eac"};
    char line[64];
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        snprintf(line, sizeof(line), " \t%s\t\r my*kernel\r\t ", words[i].word);
        const char *path = write_rules(line);
        CHECK_EQ(strlen(complaints_of(path)), 0);
        unlink(path);
        CHECK_EQ(ms_rules_match("my_kernel"), words[i].rule);
        CHECK_EQ(ms_rules_match("my_kernels"), MS_RULE_RUN);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        snprintf(line, sizeof(line), "%s my*kernel\n", others[i]);
        const char *path = write_rules(line);
        CHECK(strstr(complaints_of(path), ":1: expected write-only, in-place") != NULL);
        unlink(path);
        CHECK_EQ(ms_rules_match("my_kernel"), MS_RULE_RUN);
    }
}

MS_TEST(each_fault_of_a_line_has_its_words)
{
    const char *path = write_rules("\n \n\t# each\nin-place \nin-place a b\nrun a #\n");
    const char *text = complaints_of(path);
    static const char *const wanted[] = {
        ":4: expected a name pattern after the class; the line is ignored\n",
        ":5: expected the end of the line after the pattern; the line is ignored\n",
        ":6: expected the end of the line"};
    for (size_t i = 0; i < 3; i++)
        CHECK(strstr(text, wanted[i]) != NULL);
    CHECK(strstr(text, ":1:") == NULL && strstr(text, ":2:") == NULL &&
          strstr(text, ":3:") == NULL);
    unlink(path);
    CHECK_EQ(ms_rules_match("a"), MS_RULE_RUN);
}

/* The built-in ones among them. */
MS_TEST(a_file_gives_256_rules_at_most)
{
    char text[257 * 32] = "", expected[80];
    for (int i = 1; i <= 257; i++)
        snprintf(text + strlen(text), 32, "in-place k%d\n", i);
    const char *path = write_rules(text);
    const char *complaints = complaints_of(path);
    unlink(path);
    snprintf(expected, sizeof(expected), "%s:257: expected at most 256 rules", path);
    CHECK(strstr(complaints, expected) != NULL && strstr(complaints, ":256:") == NULL);
    CHECK(strstr(complaints, "built-in kernel rule 'write-only ") != NULL);
    CHECK_EQ(ms_rules_match("k256"), MS_RULE_IN_PLACE);
    CHECK_EQ(ms_rules_match("k257"), MS_RULE_RUN);
    CHECK_EQ(ms_rules_match(FILL), MS_RULE_RUN);
    CHECK_EQ(strlen(complaints_of("")), 0);
    CHECK_EQ(ms_rules_match(FILL), MS_RULE_WRITE_ONLY);
    CHECK_EQ(ms_rules_match("k256"), MS_RULE_RUN);
}

MS_TEST(a_process_that_reads_no_rules_has_the_built_in_ones)
{
    CHECK_EQ(ms_rules_match(FILL), MS_RULE_WRITE_ONLY);
}

/* Nothing of what was read before is left, nor of a file that is refused. */
MS_TEST(rules_that_are_read_again_take_no_more)
{
    static char too_long[(1 << 20) + 2];
    ms_rules_read("");
    const int before = live, descriptor = dup(STDERR_FILENO);
    close(descriptor);
    memset(too_long, '#', (1 << 20) + 1);
    const char *path = write_rules(too_long);
    CHECK(strstr(complaints_of(path), "expected at most 1 MiB") != NULL);
    unlink(path);
    CHECK_EQ(live, before);
    path = write_rules("run a\n");
    CHECK_EQ(strlen(complaints_of(path)), 0);
    CHECK_EQ(live, before + 1);
    CHECK_EQ(truncate(path, 7), 0);
    CHECK(strstr(complaints_of(path), "expected a text") != NULL);
    unlink(path);
    CHECK_EQ(live, before);
    CHECK_EQ(dup(STDERR_FILENO), descriptor);
    close(descriptor);
}

MS_TEST(a_fault_names_the_line_that_memory_fails_for)
{
    const char *path = write_rules("run a\nin-place b\n");
    fails_once = true;
    may_make = 0;
    const char *text = complaints_of(path);
    CHECK(strstr(text, "METASHARD_KERNEL_RULES: cannot read ") != NULL);
    CHECK(strstr(text, ": out of memory\n") != NULL);
    CHECK_EQ(ms_rules_match("b"), MS_RULE_RUN);
    CHECK_EQ(ms_rules_match(FILL), MS_RULE_WRITE_ONLY);
    may_make = 1;
    text = complaints_of(path);
    CHECK(strstr(text, ":1: out of memory; the line is ignored\n") != NULL);
    CHECK_EQ(ms_rules_match("b"), MS_RULE_IN_PLACE);
    unlink(path);
}

MS_TEST(a_file_that_is_read_in_pieces_is_read_to_its_end)
{
    const char *path = write_rules("write-only my_*_kernel\nin-place other\n");
    most_read = 7;
    CHECK_EQ(strlen(complaints_of(path)), 0);
    CHECK(read_count > 5);
    unlink(path);
    CHECK_EQ(ms_rules_match("my_first_kernel"), MS_RULE_WRITE_ONLY);
    CHECK_EQ(ms_rules_match("other"), MS_RULE_IN_PLACE);
}
