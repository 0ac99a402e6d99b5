#pragma once

#include <cstddef>
#include <cstdint>

namespace ringlab::processes {

/// Memory that processes of one host share, filled with zeros. It has no name in the file system, so nothing of it
/// remains, however the processes end. Throws Error if the system does not provide it.
class SharedMemory {
public:
    /// How another process of the same host opens it. Valid until its maker ends or calls all_have_it().
    struct Address {
        std::int64_t process = 0, space = 0;  ///< see process_space()
        std::int64_t descriptor = -1;
    };

    explicit SharedMemory(std::size_t bytes);
    SharedMemory(const Address& address, std::size_t bytes);
    ~SharedMemory();
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    Address address() const;

    /// To be called when all processes have opened it: nobody can open it afterwards.
    void all_have_it();

    void* data() const { return memory_; }

private:
    void map();

    std::size_t bytes_;
    int descriptor_;
    void* memory_ = nullptr;
};

}  // namespace ringlab::processes
