// numerator / denominator of integers, rounded once, as Python divides ints: scores that are equal as
// rationals are equal as doubles, so ties are broken the same way on every machine, and the same way as in
// DTR's reference.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace remint {

__extension__ typedef unsigned __int128 Wide;

inline double exact_ratio(std::int64_t numerator, Wide denominator) {
  constexpr std::uint64_t kExact = std::uint64_t{1} << 53;
  const bool negative = numerator < 0;
  const std::uint64_t magnitude =
      negative ? ~static_cast<std::uint64_t>(numerator) + 1 : static_cast<std::uint64_t>(numerator);
  if (denominator == 0) return std::numeric_limits<double>::infinity();
  if (magnitude == 0) return 0.0;
  if (magnitude <= kExact && denominator <= kExact) {
    return static_cast<double>(numerator) / static_cast<double>(static_cast<std::uint64_t>(denominator));
  }
  // Long division in base 2: 54 significant bits of quotient, the last of which (with the remainder) decides
  // rounding.
  Wide quotient = magnitude / denominator;
  Wide remainder = magnitude % denominator;
  int exponent = 0;
  while (quotient < (Wide{1} << 53)) {
    remainder <<= 1;
    quotient <<= 1;
    --exponent;
    if (remainder >= denominator) {
      remainder -= denominator;
      quotient |= 1;
    }
  }
  bool sticky = remainder != 0;
  while (quotient >= (Wide{1} << 54)) {
    sticky = sticky || (quotient & 1) != 0;
    quotient >>= 1;
    ++exponent;
  }
  std::uint64_t mantissa = static_cast<std::uint64_t>(quotient >> 1);
  const bool half = (quotient & 1) != 0;
  if (half && (sticky || (mantissa & 1) != 0)) ++mantissa;
  const double result = std::ldexp(static_cast<double>(mantissa), exponent + 1);
  return negative ? -result : result;
}

}  // namespace remint
