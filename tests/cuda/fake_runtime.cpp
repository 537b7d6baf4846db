// A CUDA runtime without a GPU, for LD_PRELOAD before PyTorch's CUDA build.
//
// Memory is memory of the host, in two devices of 1 GiB. A stream is a thread with a queue; before each piece
// of work it waits a random time up to FAKE_CUDA_DELAY_US microseconds. Copies, fills and events happen in
// the order of their streams. Kernels take their place in that order and compute nothing.
// tests/cuda/build_fake.py adds empty functions for the rest of what PyTorch links.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#undef cudaGetDeviceProperties
#undef cudaEventElapsedTime
#undef cudaStreamGetCaptureInfo

namespace {

constexpr int kDevices = 2;
constexpr std::size_t kMemory = std::size_t{1} << 30;

struct Memory {
  std::size_t nbytes;
  int device;
};

std::mutex memory_mutex;
std::map<const char*, Memory> on_devices;
std::map<const char*, std::size_t> pinned;
std::size_t used[kDevices];
thread_local int current = 0;
std::uint64_t num_kernels = 0;
std::uint64_t num_host_waits = 0;
std::mutex count_mutex;

void count(std::uint64_t& counter) {
  const std::lock_guard<std::mutex> lock(count_mutex);
  ++counter;
}

class Stream {
 public:
  Stream() {
    {
      const std::lock_guard<std::mutex> lock(all_mutex());
      all().push_back(this);
    }
    std::thread([this] { work(); }).detach();
  }
  static void wait_for_all() {
    std::vector<Stream*> streams;
    {
      const std::lock_guard<std::mutex> lock(all_mutex());
      streams = all();
    }
    for (Stream* stream : streams) stream->wait();
  }
  void push(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (captured_ != nullptr) {
      captured_->push_back(std::move(task));
      return;
    }
    tasks_.push_back(std::move(task));
    ++given_;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::uint64_t until = given_;
    changed_.wait(lock, [&] { return done_ >= until; });
  }
  // What it is given from here on becomes a graph, and does not happen now.
  void begin_capture() {
    const std::lock_guard<std::mutex> lock(mutex_);
    captured_ = new std::vector<std::function<void()>>();
  }
  std::vector<std::function<void()>>* end_capture() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(captured_, nullptr);
  }
  bool capturing() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return captured_ != nullptr;
  }
  bool idle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_ == given_;
  }

 private:
  // Streams are never destroyed.
  static std::vector<Stream*>& all() {
    static auto* streams = new std::vector<Stream*>();
    return *streams;
  }
  static std::mutex& all_mutex() {
    static auto* mutex = new std::mutex();
    return *mutex;
  }

  void work() {
    static const char* delay = std::getenv("FAKE_CUDA_DELAY_US");
    std::mt19937 random(static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(this)));
    std::uniform_int_distribution<int> microseconds(0, delay == nullptr ? 0 : std::atoi(delay));
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      if (const int time = microseconds(random); time > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(time));
      }
      task();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::function<void()>>* captured_ = nullptr;
  std::uint64_t given_ = 0;
  std::uint64_t done_ = 0;
};

struct Event {
  std::mutex mutex;
  std::condition_variable came;
  std::uint64_t recorded = 0;
  std::uint64_t reached = 0;
  std::chrono::steady_clock::time_point time;
};

Stream& stream_of(cudaStream_t stream) {
  static auto* defaults = new Stream[kDevices];
  const bool is_default = reinterpret_cast<std::uintptr_t>(stream) < 3;
  return is_default ? defaults[current] : *reinterpret_cast<Stream*>(stream);
}

Event& event_of(cudaEvent_t event) {
  return *reinterpret_cast<Event*>(event);
}

template <typename Map>
auto find(Map& ranges, const void* address) {
  auto after = ranges.upper_bound(static_cast<const char*>(address));
  if (after == ranges.begin()) return ranges.end();
  --after;
  return after;
}

void* map_pages(std::size_t nbytes) {
  return mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

}  // namespace

#define FAKE(name, ...) extern "C" cudaError_t name(__VA_ARGS__)

// ── Devices ──

FAKE(cudaGetDeviceCount, int* count) {
  *count = kDevices;
  return cudaSuccess;
}
FAKE(cudaGetDevice, int* device) {
  *device = current;
  return cudaSuccess;
}
FAKE(cudaSetDevice, int device) {
  current = device;
  return cudaSuccess;
}
FAKE(cudaDriverGetVersion, int* version) {
  *version = 13000;
  return cudaSuccess;
}
FAKE(cudaRuntimeGetVersion, int* version) {
  *version = 13000;
  return cudaSuccess;
}
FAKE(cudaGetDeviceProperties, cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "fake");
  properties->major = 9;
  properties->multiProcessorCount = 8;
  properties->totalGlobalMem = kMemory;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerBlockOptin = 232448;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  return cudaSuccess;
}
FAKE(cudaDeviceGetAttribute, int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}
FAKE(cudaDeviceGetStreamPriorityRange, int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}
FAKE(cudaDeviceCanAccessPeer, int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}

// ── Memory ──

FAKE(cudaMemGetInfo, std::size_t* free, std::size_t* total) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  *total = kMemory;
  *free = kMemory - used[current];
  return cudaSuccess;
}
FAKE(cudaMalloc, void** address, std::size_t nbytes) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  if (used[current] + nbytes > kMemory) return cudaErrorMemoryAllocation;
  *address = map_pages(nbytes);
  on_devices[static_cast<char*>(*address)] = {nbytes, current};
  used[current] += nbytes;
  return cudaSuccess;
}
FAKE(cudaFree, void* address) {
  // The real one waits for the device, too.
  Stream::wait_for_all();
  const std::lock_guard<std::mutex> lock(memory_mutex);
  const auto found = on_devices.find(static_cast<char*>(address));
  if (found == on_devices.end()) return cudaSuccess;
  used[found->second.device] -= found->second.nbytes;
  munmap(address, found->second.nbytes);
  on_devices.erase(found);
  return cudaSuccess;
}
FAKE(cudaHostAlloc, void** address, std::size_t nbytes, unsigned) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  *address = map_pages(nbytes);
  pinned[static_cast<char*>(*address)] = nbytes;
  return cudaSuccess;
}
FAKE(cudaFreeHost, void* address) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  pinned.erase(static_cast<char*>(address));
  return cudaSuccess;
}
FAKE(cudaPointerGetAttributes, cudaPointerAttributes* attributes, const void* address) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->devicePointer = attributes->hostPointer = const_cast<void*>(address);
  const char* at = static_cast<const char*>(address);
  if (auto range = find(on_devices, address);
      range != on_devices.end() && at < range->first + range->second.nbytes) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = range->second.device;
  } else if (auto host = find(pinned, address); host != pinned.end() && at < host->first + host->second) {
    attributes->type = cudaMemoryTypeHost;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
  }
  return cudaSuccess;
}
FAKE(cudaMemcpyAsync, void* to, const void* from, std::size_t nbytes, cudaMemcpyKind kind,
     cudaStream_t stream) {
  // Pageable memory of the host is staged before the call returns, as the real runtime does.
  cudaPointerAttributes source;
  cudaPointerGetAttributes(&source, from);
  if (kind == cudaMemcpyHostToDevice && source.type == cudaMemoryTypeUnregistered) {
    std::string staged(static_cast<const char*>(from), nbytes);
    stream_of(stream).push(
        [to, staged = std::move(staged)] { std::memcpy(to, staged.data(), staged.size()); });
    return cudaSuccess;
  }
  stream_of(stream).push([=] { std::memmove(to, from, nbytes); });
  return cudaSuccess;
}
FAKE(cudaMemcpyPeerAsync, void* to, int, const void* from, int, std::size_t nbytes, cudaStream_t stream) {
  stream_of(stream).push([=] { std::memmove(to, from, nbytes); });
  return cudaSuccess;
}
FAKE(cudaMemcpy, void* to, const void* from, std::size_t nbytes, cudaMemcpyKind) {
  stream_of(nullptr).wait();
  std::memmove(to, from, nbytes);
  return cudaSuccess;
}
FAKE(cudaMemsetAsync, void* at, int value, std::size_t nbytes, cudaStream_t stream) {
  stream_of(stream).push([=] { std::memset(at, value, nbytes); });
  return cudaSuccess;
}

// ── Streams and events ──

FAKE(cudaStreamCreateWithPriority, cudaStream_t* stream, unsigned, int) {
  *stream = reinterpret_cast<cudaStream_t>(new Stream());
  return cudaSuccess;
}
FAKE(cudaStreamCreateWithFlags, cudaStream_t* stream, unsigned) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
FAKE(cudaStreamSynchronize, cudaStream_t stream) {
  count(num_host_waits);
  stream_of(stream).wait();
  return cudaSuccess;
}
FAKE(cudaStreamQuery, cudaStream_t stream) {
  return stream_of(stream).idle() ? cudaSuccess : cudaErrorNotReady;
}
FAKE(cudaDeviceSynchronize) {
  count(num_host_waits);
  stream_of(nullptr).wait();
  return cudaSuccess;
}
FAKE(cudaStreamIsCapturing, cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream_of(stream).capturing() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
FAKE(cudaStreamGetCaptureInfo, cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
     cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, std::size_t*) {
  if (id != nullptr) *id = 1;
  return cudaStreamIsCapturing(stream, status);
}
FAKE(cudaStreamBeginCapture, cudaStream_t stream, cudaStreamCaptureMode) {
  stream_of(stream).begin_capture();
  return cudaSuccess;
}
FAKE(cudaStreamEndCapture, cudaStream_t stream, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(stream_of(stream).end_capture());
  return cudaSuccess;
}
// A graph and what can be launched of it are the same list of work. It is never freed.
FAKE(cudaGraphInstantiate, cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(graph);
  return cudaSuccess;
}
FAKE(cudaGraphInstantiateWithFlags, cudaGraphExec_t* executable, cudaGraph_t graph,
     unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
FAKE(cudaGraphGetNodes, cudaGraph_t graph, cudaGraphNode_t*, std::size_t* number) {
  *number = reinterpret_cast<std::vector<std::function<void()>>*>(graph)->size();
  return cudaSuccess;
}
FAKE(cudaGraphLaunch, cudaGraphExec_t graph, cudaStream_t stream) {
  for (const auto& task : *reinterpret_cast<std::vector<std::function<void()>>*>(graph)) {
    stream_of(stream).push(task);
  }
  return cudaSuccess;
}
FAKE(cudaStreamGetPriority, cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
FAKE(cudaEventCreateWithFlags, cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event());
  return cudaSuccess;
}
FAKE(cudaEventCreate, cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
// Work that waits for it may still be queued: events are never freed.
FAKE(cudaEventDestroy, cudaEvent_t) {
  return cudaSuccess;
}
FAKE(cudaEventRecord, cudaEvent_t handle, cudaStream_t stream) {
  Event& event = event_of(handle);
  std::uint64_t number;
  {
    const std::lock_guard<std::mutex> lock(event.mutex);
    number = ++event.recorded;
  }
  stream_of(stream).push([&event, number] {
    const std::lock_guard<std::mutex> lock(event.mutex);
    event.reached = number;
    event.time = std::chrono::steady_clock::now();
    event.came.notify_all();
  });
  return cudaSuccess;
}
FAKE(cudaEventRecordWithFlags, cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
FAKE(cudaEventQuery, cudaEvent_t handle) {
  Event& event = event_of(handle);
  const std::lock_guard<std::mutex> lock(event.mutex);
  return event.reached >= event.recorded ? cudaSuccess : cudaErrorNotReady;
}
FAKE(cudaEventSynchronize, cudaEvent_t handle) {
  count(num_host_waits);
  Event& event = event_of(handle);
  std::unique_lock<std::mutex> lock(event.mutex);
  event.came.wait(lock, [&] { return event.reached >= event.recorded; });
  return cudaSuccess;
}
FAKE(cudaEventElapsedTime, float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(event_of(to).time - event_of(from).time).count();
  return cudaSuccess;
}
FAKE(cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t handle, unsigned) {
  Event& event = event_of(handle);
  std::uint64_t number;
  {
    const std::lock_guard<std::mutex> lock(event.mutex);
    number = event.recorded;
  }
  stream_of(stream).push([&event, number] {
    std::unique_lock<std::mutex> lock(event.mutex);
    event.came.wait(lock, [&] { return event.reached >= number; });
  });
  return cudaSuccess;
}

// ── Kernels: they take their place on the stream ──

namespace {
struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local Launch next_launch;
}  // namespace

extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                                cudaStream_t stream) {
  next_launch = {grid, block, shared, stream};
  return 0;
}
extern "C" cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared,
                                                  void* stream) {
  *grid = next_launch.grid;
  *block = next_launch.block;
  *shared = next_launch.shared;
  *static_cast<cudaStream_t*>(stream) = next_launch.stream;
  return cudaSuccess;
}
FAKE(cudaLaunchKernel, const void*, dim3, dim3, void**, std::size_t, cudaStream_t stream) {
  count(num_kernels);
  stream_of(stream).push([] {});
  return cudaSuccess;
}
extern "C" cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t,
                                          cudaStream_t stream) {
  count(num_kernels);
  stream_of(stream).push([] {});
  return cudaSuccess;
}
FAKE(cudaFuncGetAttributes, cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  return cudaSuccess;
}
FAKE(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int* blocks, const void*, int, std::size_t,
     unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
extern "C" const char* cudaGetErrorString(cudaError_t) {
  return "an error of the fake runtime";
}
extern "C" const char* cudaGetErrorName(cudaError_t) {
  return "cudaErrorFake";
}
extern "C" void** __cudaRegisterFatBinary(void*) {
  static void* handle[2];
  return handle;
}
extern "C" CUresult fake_driver_function(...) {
  return CUDA_SUCCESS;
}
extern "C" CUresult cuCtxGetCurrent(CUcontext* context) {
  static int object;
  *context = reinterpret_cast<CUcontext>(&object);
  return CUDA_SUCCESS;
}
extern "C" CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
FAKE(cudaGetDriverEntryPointByVersion, const char* name, void** function, unsigned, unsigned long long,
     cudaDriverEntryPointQueryResult* result) {
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  const bool state = std::strcmp(name, "cuDevicePrimaryCtxGetState") == 0;
  *function = state ? reinterpret_cast<void*>(&cuDevicePrimaryCtxGetState)
                    : reinterpret_cast<void*>(&fake_driver_function);
  return cudaSuccess;
}

// ── Libraries: cuBLAS asks PyTorch for a workspace, and computes nothing ──

extern "C" int cublasCreate_v2(void** handle) {
  static int object;
  *handle = &object;
  return 0;
}

// ── For the tests ──

extern "C" std::uint64_t fake_num_kernels() {
  return num_kernels;
}
extern "C" std::uint64_t fake_num_host_waits() {
  return num_host_waits;
}
extern "C" void fake_sleep(cudaStream_t stream, int microseconds) {
  stream_of(stream).push([=] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
}
extern "C" std::uint64_t fake_used_bytes(int device) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  return used[device];
}
