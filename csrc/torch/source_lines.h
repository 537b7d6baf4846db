// Source lines: which line of the program an op came from. Only kept when asked for, since it takes the GIL
// and a look at Python's frames for every op.
//
// It is the innermost frame outside of PyTorch and remint. An op of the backward pass has the line of the
// forward op it belongs to: autograd numbers its nodes, and the node that is running has the number of the
// one that was made then. Where that is not known, it has the node's name.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "types.h"

namespace remint {

class SourceLines {
 public:
  // The number of the line that this thread is at; kNone if it is at none.
  std::uint32_t current();
  const std::string& text(std::uint32_t line) const { return texts_[line]; }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::uint32_t python_line();
  std::uint32_t number_of(const std::string& text);

  std::vector<std::string> texts_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
  // By the address of a code object: the file it is in, empty if that is not the program's. The objects are
  // kept, so that none gets the address of another.
  std::unordered_map<const void*, std::string> files_;
  std::uint64_t first_node_ = 0;
  std::vector<std::uint32_t> of_node_;  // by the sequence number of autograd's nodes, from first_node_ on
};

}  // namespace remint
