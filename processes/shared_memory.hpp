#pragma once

#include <cstddef>
#include <cstdint>

namespace ringlab::processes {

/// Zeroed memory that processes of one host share. It has no name, so nothing is left of it, however they end. Throws
/// Error where the system gives none.
class SharedMemory {
public:
    /// Where another process of the same host finds it, while its maker lives and has not called all_have_it().
    struct Address {
        std::int64_t process = 0;
        std::int32_t descriptor = -1;
    };

    explicit SharedMemory(std::size_t bytes);
    SharedMemory(const Address& address, std::size_t bytes);
    ~SharedMemory();
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    Address address() const;

    /// Nobody else will open it.
    void all_have_it();

    void* data() const { return memory_; }

private:
    void map();

    std::size_t bytes_;
    int descriptor_;
    void* memory_ = nullptr;
};

}  // namespace ringlab::processes
