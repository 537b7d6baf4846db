// The order of work on a device whose kernels run after their calls have returned.
//
// Within a stream work happens in the order of the calls. Between streams it happens in any order, unless one
// waits for an event of the other. The program orders the streams for what it does itself. It cannot know of
// what a budget does: memory of an evicted tensor is used for another one, a tensor is recomputed on another
// stream than the one it was made on, or moved. So a budget remembers which stream last wrote and read each
// piece of memory, and has a stream wait where work of another one must come first. The host never waits.
//
// As long as there is one stream, nothing is remembered and nothing is waited for.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <map>
#include <vector>

namespace remint {

class StreamOrder {
 public:
  explicit StreamOrder(c10::Device device) : device_(device) {}

  // The current stream is about to read bytes, or to write them.
  void before_read(const void* address, std::size_t nbytes);
  void before_write(const void* address, std::size_t nbytes);
  // The current stream gets this memory for something new. Others may still use what was there.
  void before_reuse(const void* address, std::size_t nbytes);
  // The current stream is about to move bytes; the ranges may overlap.
  void before_move(const void* to, const void* from, std::size_t nbytes);
  // The program says that `stream` uses this memory, where no op shows it.
  void record_stream(const void* address, std::size_t nbytes, const c10::Stream& stream);
  // This memory is no longer the budget's. Returns the streams that used it.
  std::vector<c10::Stream> forget(const void* address, std::size_t nbytes);
  // All streams wait for what the current one has been told to do so far.
  void publish();

  // Whether more than one stream was seen, the current one included.
  bool several() {
    current();
    return streams_.size() > 1;
  }
  // All that were seen, the current one included.
  std::vector<c10::Stream> streams();

 private:
  // Work number `ticket` of a stream.
  struct Use {
    std::uint32_t stream = 0;
    std::uint64_t ticket = 0;
  };
  struct Span {
    const char* end;
    c10::SmallVector<Use, 1> writes;              // one, unless parts of it were written apart
    c10::SmallVector<Use, 2> reads;               // since then, the last of each stream
    c10::SmallVector<std::uint32_t, 1> recorded;  // streams that use it as long as it is in use
  };
  using Spans = std::map<const char*, Span>;
  struct KnownStream {
    explicit KnownStream(c10::Stream stream) : stream(stream), event(stream.device_type()) {}
    c10::Stream stream;
    c10::Event event;
    std::uint64_t ticket = 0;         // of its last work
    std::vector<std::uint64_t> seen;  // by stream: the last work that it waits for
  };

  std::uint32_t current();
  std::uint32_t number_of(const c10::Stream& stream);
  Use next_use(std::uint32_t stream) { return {stream, ++streams_[stream].ticket}; }
  void wait(std::uint32_t waiting, Use use);
  // What memory is taken to have been used by that no span covers.
  Use before_spans() const { return {0, first_ticket_}; }
  // The span at exactly this range, made of those that overlap it.
  Span& span(const void* address, std::size_t nbytes);
  // Cuts spans so that none crosses `at`.
  void cut(const char* at);
  template <typename Uses>
  static void add(Uses& uses, Use use);
  template <typename Uses>
  void wait_for(std::uint32_t waiting, const Uses& uses);

  const c10::Device device_;
  std::vector<KnownStream> streams_;
  std::uint32_t last_ = 0;          // the stream that was current the last time
  std::uint64_t first_ticket_ = 0;  // of stream 0, when a second one came
  Spans spans_;
};

}  // namespace remint
