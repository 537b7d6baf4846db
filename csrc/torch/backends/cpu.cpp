// The CPU as a backend: pages from mmap, bytes by memcpy, the Mersenne Twister, the steady clock.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>

#include "torch/backends/budget_allocator.h"

namespace remint {
namespace {

class CpuRandomState final : public RandomState {
 public:
  explicit CpuRandomState(at::CPUGeneratorImpl& generator)
      : engine_(generator.engine()),
        next_float_(generator.next_float_normal_sample()),
        next_double_(generator.next_double_normal_sample()) {}

  void restore(at::CPUGeneratorImpl& generator) const {
    generator.set_engine(engine_);
    generator.set_next_float_normal_sample(next_float_);
    generator.set_next_double_normal_sample(next_double_);
  }

 private:
  at::mt19937 engine_;
  std::optional<float> next_float_;
  std::optional<double> next_double_;
};

class CpuArenaMemory final : public ArenaMemory {
 public:
  explicit CpuArenaMemory(Bytes nbytes) : ArenaMemory(map(nbytes), nbytes) {}
  ~CpuArenaMemory() override {
    if (base() != nullptr) munmap(base(), static_cast<std::size_t>(nbytes()));
  }

  void discard(Bytes offset, Bytes nbytes) override {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto first = reinterpret_cast<std::uintptr_t>(base()) + static_cast<std::uintptr_t>(offset);
    const std::uintptr_t begin = (first + page - 1) / page * page;
    const std::uintptr_t end = (first + static_cast<std::uintptr_t>(nbytes)) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }

 private:
  // Pages are not touched before they are used, so a large budget costs nothing.
  static char* map(Bytes nbytes) {
    if (nbytes == 0) return nullptr;
    void* base = mmap(nullptr, static_cast<std::size_t>(nbytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    return static_cast<char*>(base);
  }
};

const c10::Device kDevice(c10::DeviceType::CPU);
c10::Device the_cpu() {
  return kDevice;
}
using CpuAllocator = BudgetAllocator<c10::Allocator, &the_cpu>;

class CpuBackend final : public Backend {
 public:
  CpuBackend() : Backend(kDevice, c10::DispatchKey::CPU, c10::DispatchKey::MkldnnCPU) {}

  const std::vector<c10::DispatchKey>& other_layouts() const override {
    static const std::vector<c10::DispatchKey> keys = {
        c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::NestedTensorCPU,
        c10::DispatchKey::QuantizedCPU, c10::DispatchKey::MkldnnCPU};
    return keys;
  }
  const std::vector<c10::DispatchKey>& composite_keys() const override {
    static const std::vector<c10::DispatchKey> keys = {c10::DispatchKey::AutogradCPU, c10::DispatchKey::CPU};
    return keys;
  }

  void install_allocator(const AllocatorHook& of_budgets) override {
    if (CpuAllocator::ordinary != nullptr) return;
    CpuAllocator::ordinary = c10::GetAllocator(c10::DeviceType::CPU);
    CpuAllocator::hook = of_budgets;
    c10::SetAllocator(c10::DeviceType::CPU, new CpuAllocator(), /*priority=*/1);
  }
  c10::Allocator* ordinary_allocator() const override {
    c10::Allocator* ordinary = CpuAllocator::ordinary;
    return ordinary != nullptr ? ordinary : c10::GetAllocator(c10::DeviceType::CPU);
  }
  Bytes alignment() const override { return kCpuAlignment; }
  std::unique_ptr<ArenaMemory> reserve(Bytes nbytes) override {
    return std::make_unique<CpuArenaMemory>(nbytes);
  }
  void copy(void* to, const void* from, std::size_t nbytes) override { std::memcpy(to, from, nbytes); }
  void move(void* to, const void* from, std::size_t nbytes) override { std::memmove(to, from, nbytes); }
  void zero(void* at, std::size_t nbytes) override { std::memset(at, 0, nbytes); }

  at::Generator default_generator() const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator new_generator() const override { return at::make_generator<at::CPUGeneratorImpl>(); }
  std::unique_ptr<RandomState> save_random(const at::Generator& generator) const override {
    auto* cpu = dynamic_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
    if (cpu == nullptr) return nullptr;
    std::lock_guard<std::mutex> lock(cpu->mutex_);
    return std::make_unique<CpuRandomState>(*cpu);
  }
  void restore_random(const RandomState& state, at::Generator& generator) const override {
    auto& cpu = *static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
    std::lock_guard<std::mutex> lock(cpu.mutex_);
    static_cast<const CpuRandomState&>(state).restore(cpu);
  }

  Nanoseconds now() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace

Backend& cpu_backend() {
  // Never destroyed: tensors can die after all static objects.
  static auto* backend = new CpuBackend();
  return *backend;
}

}  // namespace remint
