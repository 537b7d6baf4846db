// A digest of bytes that the host can read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace remint {

// 128 bits. Bytes that differ have the same one by chance in one of 2^128 cases.
using Digest = std::array<std::uint64_t, 2>;

Digest digest_of(const void* address, std::size_t nbytes);

}  // namespace remint
