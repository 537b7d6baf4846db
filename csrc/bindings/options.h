// EngineOptions from the keyword arguments of a Python call, for both modules. The names are those of the
// Python class remint.engine_options.EngineOptions.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "engine/options.h"

namespace remint {

inline Deallocation deallocation_named(const std::string& name) {
  if (name == "ignore") return Deallocation::kIgnore;
  if (name == "lazy") return Deallocation::kLazy;
  if (name == "eager") return Deallocation::kEager;
  if (name == "banish") return Deallocation::kBanish;
  throw std::invalid_argument("deallocation is one of 'ignore', 'lazy', 'eager', 'banish', not '" + name +
                              "'");
}

inline WindowLooks windows_named(const std::string& name) {
  if (name == "few") return WindowLooks::kFew;
  if (name == "all") return WindowLooks::kAll;
  if (name == "compared") return WindowLooks::kCompared;
  throw std::invalid_argument("windows is one of 'few', 'all', 'compared', not '" + name + "'");
}

inline TierUse tier_use_named(const std::string& name) {
  if (name == "either") return TierUse::kEither;
  if (name == "recompute") return TierUse::kRecompute;
  if (name == "offload") return TierUse::kOffload;
  throw std::invalid_argument("tier_use is one of 'either', 'recompute', 'offload', not '" + name + "'");
}

// What is not given has its default. A name that is none of the options' is a TypeError.
inline EngineOptions engine_options(const pybind11::kwargs& keywords) {
  EngineOptions options;
  for (const auto& [key, value] : keywords) {
    const auto name = key.cast<std::string>();
    if (name == "policy") {
      options.policy = value.cast<std::string>();
    } else if (name == "ignore_small") {
      options.ignore_small = value.cast<double>();
    } else if (name == "sample") {
      options.sample = value.cast<bool>();
    } else if (name == "time_exponent") {
      options.time_exponent = value.cast<double>();
    } else if (name == "windows") {
      options.windows = windows_named(value.cast<std::string>());
    } else if (name == "seed") {
      options.seed = value.cast<std::uint64_t>();
    } else if (name == "deallocation") {
      options.deallocation = deallocation_named(value.cast<std::string>());
    } else if (name == "partition") {
      options.partition = value.cast<std::optional<bool>>();
    } else if (name == "moving") {
      options.moving = value.cast<std::optional<bool>>();
    } else if (name == "max_depth") {
      options.max_depth = value.cast<std::optional<std::uint32_t>>();
    } else if (name == "max_rematerialized_ns") {
      options.max_rematerialized = value.cast<std::optional<Nanoseconds>>();
    } else if (name == "tier_bytes") {
      options.tier.bytes = value.cast<Bytes>();
    } else if (name == "tier_bandwidth") {
      options.tier.bandwidth = value.cast<double>();
    } else if (name == "tier_latency_ns") {
      options.tier.latency = value.cast<Nanoseconds>();
    } else if (name == "tier_alignment") {
      options.tier.alignment = value.cast<Bytes>();
    } else if (name == "tier_use") {
      options.tier.use = tier_use_named(value.cast<std::string>());
    } else if (name == "check") {
      options.check = value.cast<bool>();
    } else {
      throw pybind11::type_error("there is no option '" + name + "'");
    }
  }
  return options;
}

}  // namespace remint
