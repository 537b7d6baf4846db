// The file of a tier. Copies are multiples of a page, and take the first place that is large enough.
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "torch/session/offload_store.h"

namespace remint {
namespace {

constexpr Bytes kPage = 4096;

int open_without_name(const std::string& folder) {
  int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  // Not all file systems can do that.
  std::string name = folder + "/remint-offload-XXXXXX";
  file = mkostemp(name.data(), O_CLOEXEC);
  TORCH_CHECK_VALUE(file >= 0, "remint: offload= needs a file in ", folder,
                    ", which cannot be made: ", std::strerror(errno),
                    ". Name another folder: remint.Offload(path=...).");
  unlink(name.c_str());
  return file;
}

class OffloadFile final : public OffloadStore {
 public:
  OffloadFile(const std::string& folder, Bytes most)
      : folder_(folder), most_(most), file_(open_without_name(folder)), process_(getpid()) {}
  ~OffloadFile() override { close(file_); }

  bool write(StorageId id, const void* from, std::size_t nbytes) override {
    if (getpid() != process_) {
      problem_ = "this process was forked from the one that has the offload file";
      return false;
    }
    const Place place = take(static_cast<Bytes>(nbytes));
    if (!write_at(place.offset, from, nbytes)) {
      give_back(place);
      return false;
    }
    if (id >= places_.size()) places_.resize(std::max<std::size_t>(id + 1, 2 * places_.size()));
    places_[id] = place;
    problem_.clear();
    return true;
  }

  void read(StorageId id, void* to, std::size_t nbytes) override {
    TORCH_CHECK(getpid() == process_,
                "remint: a tensor that was offloaded before this process was forked is in the file of its "
                "parent, which goes on to change it. Use the tensor before the fork, or fork before the "
                "budget.");
    Bytes done = 0;
    while (done < static_cast<Bytes>(nbytes)) {
      const ssize_t count = pread(file_, static_cast<char*>(to) + done,
                                  nbytes - static_cast<std::size_t>(done), places_[id].offset + done);
      if (count < 0 && errno == EINTR) continue;
      TORCH_CHECK(count > 0, "remint: ", nbytes,
                  " bytes of an offloaded tensor cannot be read from the file in ", folder_, ": ",
                  count < 0 ? std::strerror(errno) : "the file is shorter than it was",
                  ". The tensor stays offloaded: read it again, or look at the disk.");
      done += count;
    }
  }

  void drop(StorageId id) override {
    if (getpid() == process_) give_back(places_[id]);
  }

  double measure_bandwidth() override {
    std::vector<char> bytes(4 << 20, 1);
    const Place place = take(static_cast<Bytes>(bytes.size()));
    // The first write gives the file its pages. Offloaded tensors mostly take places that others left.
    bool works = write_at(place.offset, bytes.data(), bytes.size());
    const auto started = std::chrono::steady_clock::now();
    works = works && write_at(place.offset, bytes.data(), bytes.size());
    works = works && pread(file_, bytes.data(), bytes.size(), place.offset) > 0;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
    give_back(place);
    return works && took.count() > 0 ? 2.0 * static_cast<double>(bytes.size()) / took.count() : 0.0;
  }

  bool survives_fork() const override { return false; }

 private:
  struct Place {
    Bytes offset = 0;
    Bytes nbytes = 0;
  };

  bool write_at(Bytes offset, const void* from, std::size_t nbytes) {
    Bytes done = 0;
    while (done < static_cast<Bytes>(nbytes)) {
      const ssize_t count = pwrite(file_, static_cast<const char*>(from) + done,
                                   nbytes - static_cast<std::size_t>(done), offset + done);
      if (count < 0 && errno == EINTR) continue;
      if (count > 0) {
        done += count;
        continue;
      }
      problem_ = "the offload file in " + folder_ + " took no more (" +
                 (count < 0 ? std::strerror(errno) : "nothing was written") + ")";
      return false;
    }
    return true;
  }

  Place take(Bytes nbytes) {
    const Bytes size = std::max<Bytes>((nbytes + kPage - 1) / kPage * kPage, kPage);
    for (auto free = free_.begin(); free != free_.end(); ++free) {
      if (free->second < size) continue;
      const Place place{free->first, size};
      const Bytes rest = free->second - size;
      free_.erase(free);
      if (rest > 0) free_[place.offset + size] = rest;
      return place;
    }
    // Between what is in use the file has holes from here on: they take no space on the disk.
    if (end_ + size > most_) {
      for (const auto& [offset, hole] : free_) punch(offset, hole);
      sparse_ = true;
    }
    const Place place{end_, size};
    end_ += size;
    return place;
  }

  void give_back(Place place) {
    if (sparse_) punch(place.offset, place.nbytes);
    auto after = free_.upper_bound(place.offset);
    if (after != free_.end() && place.offset + place.nbytes == after->first) {
      place.nbytes += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin()) {
      auto before = std::prev(after);
      if (before->first + before->second == place.offset) {
        before->second += place.nbytes;
        return;
      }
    }
    free_[place.offset] = place.nbytes;
  }

  void punch(Bytes offset, Bytes nbytes) {
    // Where that is not possible, the file takes more of the disk.
    [[maybe_unused]] const int result =
        fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, nbytes);
  }

  const std::string folder_;
  const Bytes most_;
  const int file_;
  const pid_t process_;
  Bytes end_ = 0;
  bool sparse_ = false;
  std::map<Bytes, Bytes> free_;  // offset to bytes; neighbours are joined
  std::vector<Place> places_;    // by storage
};

}  // namespace

std::unique_ptr<OffloadStore> new_offload_file(const std::string& folder, Bytes most) {
  return std::make_unique<OffloadFile>(folder, most);
}

}  // namespace remint
