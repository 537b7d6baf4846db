// The headers that nearly every file of the runtime needs, read once. Headers that few files need (autograd,
// Python) stay out: what they instantiate would be compiled again in every file.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>
