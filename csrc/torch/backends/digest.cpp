#include "torch/backends/digest.h"

#include <algorithm>
#include <cstring>

namespace remint {

// Two chains over all words, each with a multiplication that carries every bit to every other one.
Digest digest_of(const void* address, std::size_t nbytes) {
  auto mix = [](std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  Digest digest = {0x9e3779b97f4a7c15 ^ nbytes, 0xc2b2ae3d27d4eb4f};
  const char* at = static_cast<const char*>(address);
  for (std::size_t left = nbytes; left > 0;) {
    std::uint64_t word = 0;
    const std::size_t some = std::min(left, sizeof word);
    std::memcpy(&word, at, some);
    digest[0] = mix(digest[0] ^ word, 0xa0761d6478bd642f);
    digest[1] = (digest[1] << 23 | digest[1] >> 41) + (word ^ digest[0]) * 0xe7037ed1a0b428db;
    at += some;
    left -= some;
  }
  return digest;
}

}  // namespace remint
