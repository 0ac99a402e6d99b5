#include "tests/layouts/allocations.hpp"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

// The tests of this folder run on one thread, so plain counters do.
namespace {
std::int64_t calls = 0;
std::size_t held = 0;
std::size_t most_held = 0;
}  // namespace

// Replaces the global allocation functions of this program: the array forms call these, and the nothrow one does but
// under the address sanitizer, which brings its own.
void* operator new(std::size_t size) {
    void* memory = std::malloc(size == 0 ? 1 : size);
    if (!memory) throw std::bad_alloc();
    ++calls;
    held += malloc_usable_size(memory);
    most_held = std::max(most_held, held);
    return memory;
}

void* operator new(std::size_t size, const std::nothrow_t&) noexcept try {
    return operator new(size);
} catch (const std::bad_alloc&) {
    return nullptr;
}

void operator delete(void* memory) noexcept {
    if (!memory) return;
    held -= malloc_usable_size(memory);
    std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

namespace ringlab::layouts::testing {

std::int64_t allocations() { return calls; }
std::size_t allocated_bytes() { return held; }
std::size_t peak_bytes() { return most_held; }
void reset_peak() { most_held = held; }

}  // namespace ringlab::layouts::testing
