// The largest magnitudes by cub::DeviceTopK, as a library that Python calls by ctypes.
//
// Unordered, and of equal magnitudes any: what the algorithm does in the least time.

#include <cstddef>
#include <cstdint>

#include <cub/device/device_topk.cuh>
#include <cuda/iterator>
#include <cuda/std/cmath>
#include <cuda/std/execution>
#include <cuda/stream_ref>

namespace {

struct Magnitude {
  __host__ __device__ float operator()(float x) const { return cuda::std::fabs(x); }
};

}  // namespace

// Writes the k largest magnitudes of n entries, and where they are.  Where there is no storage, writes
// only how many bytes of it are needed.  Returns CUDA's error code.
extern "C" int largest_magnitudes(void* storage, std::size_t* bytes, const float* entries, float* magnitudes,
                                  std::int32_t* places, std::int64_t n, std::int64_t k, void* stream) {
  const auto order = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
                                              cuda::execution::output_ordering::unsorted);
  const cuda::stream_ref on{static_cast<cudaStream_t>(stream)};
  return cub::DeviceTopK::MaxPairs(storage, *bytes, cuda::make_transform_iterator(entries, Magnitude{}), magnitudes,
                                   cuda::make_counting_iterator(std::int32_t{0}), places, n, k,
                                   cuda::std::execution::env{on, order});
}
