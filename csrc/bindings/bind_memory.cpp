// Python's view of memory: planned addresses, and the arena on its own.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "memory/arena.h"
#include "memory/placement.h"

namespace py = pybind11;

namespace {

using Numbers = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

std::vector<remint::PlacedBlock> blocks_of(const Numbers& nbytes, const Numbers& born, const Numbers& dies,
                                           const Numbers& addresses) {
  if (born.size() != nbytes.size() || dies.size() != nbytes.size() || addresses.size() != nbytes.size())
    throw std::invalid_argument("the columns differ in length");
  std::vector<remint::PlacedBlock> blocks;
  for (py::ssize_t i = 0; i < nbytes.size(); ++i) {
    blocks.push_back({nbytes.data()[i], static_cast<std::uint32_t>(born.data()[i]),
                      static_cast<std::uint32_t>(dies.data()[i]), addresses.data()[i]});
  }
  return blocks;
}

// Ids of blocks come from Python, so they are checked.
remint::BlockId used_block(const remint::Arena& arena, remint::BlockId id) {
  for (remint::BlockId each = arena.first(); each != remint::kNone; each = arena.block(each).next)
    if (each == id && !arena.block(id).free()) return id;
  throw std::invalid_argument("no block in use has this id");
}

std::optional<remint::BlockId> or_none(remint::BlockId id) {
  if (id == remint::kNone) return std::nullopt;
  return id;
}

}  // namespace

void remint::bind_memory(py::module_& module) {
  module.def(
      "place",
      [](const Numbers& nbytes, const Numbers& born, const Numbers& dies, const Numbers& addresses,
         Bytes limit, std::uint64_t max_moves, std::uint64_t seed) {
        std::vector<PlacedBlock> blocks = blocks_of(nbytes, born, dies, addresses);
        PlacementResult result;
        {
          py::gil_scoped_release release;
          result = place(blocks, limit, max_moves, seed);
        }
        py::array_t<std::int64_t> placed(nbytes.size());
        for (std::size_t i = 0; i < blocks.size(); ++i) placed.mutable_data()[i] = blocks[i].address;
        return py::make_tuple(placed, result.top, result.fits, result.moves, result.looks);
      },
      py::kw_only(), py::arg("nbytes"), py::arg("born"), py::arg("dies"), py::arg("addresses"),
      py::arg("limit"), py::arg("max_moves"), py::arg("seed"));

  module.def(
      "byte_peak",
      [](const Numbers& nbytes, const Numbers& born, const Numbers& dies) {
        return byte_peak(blocks_of(nbytes, born, dies, nbytes));
      },
      py::kw_only(), py::arg("nbytes"), py::arg("born"), py::arg("dies"));

  py::class_<Arena>(module, "Arena")
      .def(py::init<Bytes, Bytes>(), py::arg("budget"), py::arg("alignment"))
      .def(
          "allocate",
          [](Arena& arena, Bytes nbytes, bool high) {
            return or_none(arena.allocate(nbytes, high ? End::kHigh : End::kLow));
          },
          py::arg("nbytes"), py::kw_only(), py::arg("high") = false)
      .def(
          "allocate_at",
          [](Arena& arena, Bytes address, Bytes nbytes) {
            return or_none(arena.allocate_at(address, nbytes));
          },
          py::arg("address"), py::arg("nbytes"))
      .def("index_addresses", &Arena::index_addresses, py::arg("on"))
      .def("own",
           [](Arena& arena, BlockId id, StorageId storage) { arena.own(used_block(arena, id), storage); })
      .def("free", [](Arena& arena, BlockId id) { arena.free(used_block(arena, id), 0); })
      .def("address", [](const Arena& arena, BlockId id) { return arena.address(used_block(arena, id)); })
      .def(
          "compact",
          [](Arena& arena, Bytes low, Bytes high, const std::function<bool(StorageId)>& movable) {
            std::vector<std::tuple<StorageId, Bytes, Bytes>> moves;
            arena.compact(low, high, movable, [&](StorageId storage, Bytes from, Bytes to) {
              moves.emplace_back(storage, from, to);
            });
            return moves;
          },
          py::arg("low"), py::arg("high"), py::arg("movable"))
      .def("check", &Arena::check)
      .def_property_readonly("used", &Arena::used)
      .def_property_readonly("budget", &Arena::budget)
      .def_property_readonly("largest_free", &Arena::largest_free);
}
