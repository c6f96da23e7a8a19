// A pretend accelerator, where there is none: torch's PrivateUse1, with host memory behind it.
//
// It is stricter than a real one.  Its memory is closed to the host: who reads it by accident
// crashes.  A copy that does not block is late: what it was to write is full of 0xFF, which are
// NaN, until somebody waits for the device.  A pinned source of such a copy must be left alone
// until then: a source that was changed is an error, told by the next wait.  Waits are counted.
//
// It has streams.  What one of them was given to copy from pinned memory is there for another one
// only when that one waits for it.

#include <Python.h>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace {

constexpr auto kPretend = c10::DeviceType::PrivateUse1;
constexpr size_t kPage = 4096;

std::recursive_mutex lock;   // one operation at a time, as on one stream
bool is_late = false;        // copies that do not block happen when somebody waits
int64_t waits = 0;           // how often the host waited for the device
int64_t reused = 0;          // pinned sources that were changed before the device had read them
std::set<const void*> pinned;

// Holds the lock.  Who waits for it lets go of Python meanwhile: whoever has it may need that, to drop
// the last reference to a tensor that Python knows, and would wait for ever.
class Alone {
 public:
  Alone() {
    if (lock.try_lock()) return;
    PyThreadState* here = Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    lock.lock();
    if (here) PyEval_RestoreThread(here);
  }
  ~Alone() { lock.unlock(); }
  Alone(const Alone&) = delete;
};

// -- memory --------------------------------------------------------------------------------------

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

struct Block {
  void* start;
  size_t bytes;
};

void unmap(void* context) {
  auto* block = static_cast<Block*>(context);
  munmap(block->start, block->bytes);
  delete block;
}

void nothing(void*) {}

struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kPretend, 0);
    if (!bytes) return {nullptr, nullptr, &nothing, device};
    const size_t size = whole_pages(bytes);
    void* start = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(start != MAP_FAILED, "pretend: no memory");
    return {start, new Block{start, size}, &unmap, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "pretend: its memory is not copied like this");
  }
} device_memory;

void unpin(void* context) {
  Alone guard;
  pinned.erase(context);
  free(context);
}

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* start = aligned_alloc(kPage, whole_pages(bytes ? bytes : 1));
    std::memset(start, 0xFF, bytes);  // nobody may count on zeros
    Alone guard;
    pinned.insert(start);
    return {start, start, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
} pinned_memory;

// Opens a tensor's memory while the device itself works on it.
class Opened {
 public:
  explicit Opened(const at::Tensor& tensor) {
    const auto& storage = tensor.storage();
    start_ = const_cast<void*>(storage.data());
    bytes_ = whole_pages(storage.nbytes());
    protect(PROT_READ | PROT_WRITE);
  }
  Opened(Opened&& other) noexcept : start_(other.start_), bytes_(other.bytes_) {
    other.start_ = nullptr;
  }
  ~Opened() { protect(PROT_NONE); }

 private:
  void protect(int access) {
    if (start_) mprotect(start_, bytes_, access);
  }
  void* start_ = nullptr;
  size_t bytes_ = 0;
};

// The same entries in the same memory, as a tensor of the CPU; the memory must be open.
at::Tensor on_cpu(const at::Tensor& tensor) {
  auto* start = static_cast<char*>(const_cast<void*>(tensor.storage().data()));
  return at::from_blob(start + tensor.storage_offset() * tensor.element_size(), tensor.sizes(),
                       tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

bool is_pretend(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kPretend;
}

// -- time ----------------------------------------------------------------------------------------

// A copy from pinned memory, until somebody waits.
struct Read {
  at::Tensor source, as_it_was;
};
// A copy that its stream has still to do; others that wait for the stream have it too.
struct Task {
  std::function<void()> work;
  bool is_done = false;
};
using Queue = std::vector<std::shared_ptr<Task>>;
struct Pending {
  Queue uploads, fetches;
};
std::map<c10::StreamId, Pending> pending;
thread_local c10::StreamId current = 0;
c10::StreamId streams = 0;  // how many there are besides the default one
std::vector<Read> reads;

Queue& uploads() { return pending[current].uploads; }

void later(Queue& queue, std::function<void()> work) {
  queue.push_back(std::make_shared<Task>(Task{std::move(work)}));
}

void run_all(Queue& queue) {
  const auto tasks = std::move(queue);
  queue.clear();
  for (auto& task : tasks) {
    if (!task->is_done) task->work();
    task->is_done = true;
  }
}

void wait_for(Pending& stream) {
  Alone guard;
  ++waits;
  run_all(stream.uploads);
  run_all(stream.fetches);
  for (auto& read : reads)
    if (std::memcmp(read.source.data_ptr(), read.as_it_was.data_ptr(), read.source.nbytes()))
      ++reused;
  reads.clear();
}

void wait() { wait_for(pending[current]); }

// -- copies --------------------------------------------------------------------------------------

void upload(const at::Tensor& from, const at::Tensor& to) {
  at::AutoDispatchBelowADInplaceOrView below;
  Opened opened(to);
  on_cpu(to).copy_(from);
}

void copy_to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool is_pinned = from.storage() && pinned.count(from.storage().data());
  if (!(non_blocking && is_late && is_pinned)) {
    if (is_late && !non_blocking) wait();  // as on a real device
    run_all(uploads());
    return upload(from, to);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  reads.push_back({from, from.clone()});
  if (to.is_non_overlapping_and_dense()) {
    Opened opened(to);
    std::memset(on_cpu(to).data_ptr(), 0xFF, to.nbytes());
  }
  later(uploads(), [=] { upload(from, to); });
}

void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  run_all(uploads());
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor now;
  {
    Opened opened(from);
    now = on_cpu(from).clone();
  }
  if (!(non_blocking && is_late)) {
    if (!non_blocking) wait();
    to.copy_(now);
    return;
  }
  TORCH_CHECK(to.is_contiguous(), "pretend: copies that do not block want contiguous memory");
  std::memset(to.data_ptr(), 0xFF, to.nbytes());
  later(pending[current].fetches, [=] {
    at::AutoDispatchBelowADInplaceOrView below_again;
    to.copy_(now);
  });
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Alone guard;
  if (!is_pretend(from)) {
    copy_to_device(from, to, non_blocking);
  } else if (!is_pretend(to)) {
    copy_to_host(from, to, non_blocking);
  } else {
    run_all(uploads());
    Opened source(from), target(to);
    on_cpu(to).copy_(on_cpu(from));
    return to;
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  Alone guard;
  wait();
  Opened opened(tensor);
  return at::_local_scalar_dense(on_cpu(tensor));
}

// -- every other operation -----------------------------------------------------------------------

// The device's memory lent to the CPU's kernel of one operation: without a copy, so without a wait.
class Lending {
 public:
  at::Tensor lend(const at::Tensor& tensor) {
    if (!is_pretend(tensor)) return tensor;
    if (!tensor.numel()) {  // an output that the operation gives its size
      grown_.push_back({tensor, at::empty(tensor.sizes(), tensor.scalar_type())});
      return grown_.back().second;
    }
    opened_.emplace_back(tensor);
    return on_cpu(tensor);
  }

  c10::IValue lend(const c10::IValue& value) {
    if (value.isTensor()) return lend(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> lent;
      for (const at::Tensor& each : value.toTensorVector()) lent.push_back(lend(each));
      return lent;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> lent;
      for (const std::optional<at::Tensor> each : value.toOptionalTensorList())
        lent.push_back(each ? std::optional(lend(*each)) : each);
      return lent;
    }
    if (value.isDevice()) return c10::IValue(c10::Device(c10::kCPU));
    return value;
  }

  // Gives outputs that have grown their size and entries.
  void take_back() {
    for (auto& [tensor, made] : grown_) {
      if (!made.numel()) continue;
      tensor.resize_(made.sizes());
      upload(made, tensor);
    }
  }

 private:
  std::vector<Opened> opened_;
  std::vector<std::pair<at::Tensor, at::Tensor>> grown_;
};

at::Tensor own_memory(const at::Tensor& made) {
  if (!made.defined()) return made;
  at::Tensor owned = at::detail::empty_strided_generic(
      made.sizes(), made.strides(), &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      made.scalar_type());
  upload(made, owned);
  return owned;
}

void by_the_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  Alone guard;
  run_all(uploads());
  const auto& schema = operation.schema();
  const size_t count = schema.arguments().size();
  const std::vector<c10::IValue> given(stack->end() - count, stack->end());
  {
    Lending lending;
    for (size_t i = 0; i < count; ++i) (*stack)[stack->size() - count + i] = lending.lend(given[i]);
    operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    lending.take_back();
  }
  const size_t first = stack->size() - schema.returns().size();
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const auto* alias = schema.returns()[i].alias_info();
    auto& result = (*stack)[first + i];
    if (alias && alias->isWrite()) {  // it wrote into an argument: that is the result
      for (size_t k = 0; k < count; ++k) {
        const auto* of = schema.arguments()[k].alias_info();
        if (of && of->isWrite() && of->beforeSets() == alias->beforeSets()) result = given[k];
      }
    } else if (result.isTensor()) {
      TORCH_CHECK(!alias, "pretend: ", schema.name(), " returns a view, which nobody wrote here");
      result = own_memory(result.toTensor());
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> owned;
      for (const at::Tensor& each : result.toTensorVector()) owned.push_back(own_memory(each));
      result = owned;
    }
  }
}

// -- what has to do with memory rather than entries ----------------------------------------------

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;
using Flag = std::optional<bool>;
using Format = std::optional<at::MemoryFormat>;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::IntArrayRef size, Dtype dtype, Layout, Device, Flag, Format format) {
  return at::detail::empty_generic(size, &device_memory, kKeys, dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef strides, Dtype dtype, Layout,
                         Device, Flag) {
  return at::detail::empty_strided_generic(size, strides, &device_memory, kKeys,
                                           dtype.value_or(at::kFloat));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, Format) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* impl = self.unsafeGetTensorImpl();
  const size_t entries = c10::multiply_integers(sizes) + self.storage_offset();
  if (entries * self.element_size() > self.storage().nbytes()) {
    TORCH_CHECK(!self.storage().nbytes(), "pretend: only empty tensors grow");
    impl->set_storage_keep_dtype(
        at::detail::empty_generic(sizes, &device_memory, kKeys, self.scalar_type(), std::nullopt)
            .storage());
    impl->set_storage_offset(0);
  }
  impl->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, strides, offset);
}

at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  return at::native::view(self, size);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef strides) {
  return at::native::as_strided_tensorimpl(self, size, strides, std::nullopt);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset,
                        c10::IntArrayRef size, c10::IntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_and_strides(size, strides, offset);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const int64_t entries = storage.nbytes() / self.element_size();
  return set_storage(self, std::move(storage), 0, {entries}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& other) {
  return set_storage(self, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}

// -- what torch asks of an accelerator -----------------------------------------------------------

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kPretend> {
  c10::Device exchangeDevice(c10::Device) const override { return {kPretend, 0}; }
  c10::Device getDevice() const override { return {kPretend, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(current); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    Alone here;
    return stream(++streams);
  }
  c10::Stream exchangeStream(c10::Stream other) const noexcept override {
    const auto before = current;
    current = other.id();
    return stream(before);
  }
  void record(void** event, const c10::Stream& of, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    Alone here;
    if (!*event) *event = new Queue;
    *static_cast<Queue*>(*event) = pending[of.id()].uploads;
  }
  void block(void* event, const c10::Stream& waiting) const override {
    Alone here;
    if (!event) return;
    auto& queue = pending[waiting.id()].uploads;
    for (auto& task : *static_cast<Queue*>(event)) queue.push_back(task);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Queue*>(event);
  }
  bool queryEvent(void*) const override { return pending[current].fetches.empty(); }
  bool queryStream(const c10::Stream& of) const override { return pending[of.id()].fetches.empty(); }
  void synchronizeStream(const c10::Stream& of) const override { wait_for(pending[of.id()]); }
  void synchronizeEvent(void*) const override { wait(); }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    Alone here;
    for (auto& each : pending)
      if (each.first != current) run_all(each.second.uploads), run_all(each.second.fetches);
    wait();
  }

 private:
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kPretend, 0), id);
  }
} guard;

struct Hooks : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool isPinnedPtr(const void* data) const override {
    Alone here;
    return pinned.count(data) > 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
};

const struct Registration {
  Registration() {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    c10::SetAllocator(kPretend, &device_memory);
  }
} registration;
c10::impl::DeviceGuardImplRegistrar registrar(kPretend, &guard);

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("resize_", resize);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Storage", set_whole_storage);
  library.impl("set_.source_Tensor", set_tensor);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>());
}

TORCH_LIBRARY(pretend, library) {
  library.def("late(bool on) -> ()", [](bool on) { is_late = on; });
  library.def("waits() -> int", [] { return waits; });
  library.def("reused() -> int", [] { return reused; });
}
