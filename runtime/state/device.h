/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that the program uses, in the state page and in the log. */
#pragma once

#include "runtime/driver/driver.h"

/* Publishes the device's name and memory, once. */
void ms_device_publish(CUdevice device);
