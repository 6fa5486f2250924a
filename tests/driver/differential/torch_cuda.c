/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for PyTorch's libtorch_cuda.so: only its name, its place and its build-id count. */
int torch_cuda_stand_in(void);

__attribute__((visibility("default"))) int torch_cuda_stand_in(void)
{
    return 0;
}
