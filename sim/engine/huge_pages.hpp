#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace ringlab::sim {

/// Allocator that gives vectors whole cache lines and, from megabytes on and where the system supports it, huge pages.
/// A simulation of thousands of ranks jumps through its memory, and with pages of 4 KiB each jump costs an address
/// translation as well.
template <class T>
struct HugePages {
    using value_type = T;

    HugePages() = default;
    template <class U>
    HugePages(const HugePages<U>&) {}

    /// In elements. Leaves room to round bytes up.
    static constexpr std::size_t max_size() { return PTRDIFF_MAX / 2 / sizeof(T); }

    T* allocate(std::size_t count) {
        if (count > max_size()) throw std::bad_array_new_length();
        const auto bytes = count * sizeof(T);
        if (is_small(bytes)) return static_cast<T*>(::operator new(bytes));
        void* memory = ::operator new(rounded(bytes), alignment(bytes));
#ifdef __linux__
        if (is_large(bytes)) madvise(memory, rounded(bytes), MADV_HUGEPAGE);  // only a hint to the system
#endif
        return static_cast<T*>(memory);
    }
    void deallocate(T* memory, std::size_t count) {
        const auto bytes = count * sizeof(T);
        is_small(bytes) ? ::operator delete(memory) : ::operator delete(memory, alignment(bytes));
    }

    friend bool operator==(const HugePages&, const HugePages&) { return true; }

private:
    static constexpr std::size_t line = 64, huge = std::size_t{2} << 20;

    /// Small blocks fit in the cache wherever they begin, and aligned memory takes longer to allocate.
    static bool is_small(std::size_t bytes) { return bytes <= 1024 && alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__; }

    /// Large enough for huge pages, unless much of the last page would stay empty.
    static bool is_large(std::size_t bytes) { return bytes > huge / 2 && rounded_up(bytes) - bytes <= bytes / 4; }
    static std::size_t rounded_up(std::size_t bytes) { return (bytes + huge - 1) / huge * huge; }
    static std::align_val_t alignment(std::size_t bytes) { return std::align_val_t{is_large(bytes) ? huge : line}; }
    static std::size_t rounded(std::size_t bytes) { return is_large(bytes) ? rounded_up(bytes) : bytes; }
};

template <class T>
using HugeVector = std::vector<T, HugePages<T>>;

}  // namespace ringlab::sim
