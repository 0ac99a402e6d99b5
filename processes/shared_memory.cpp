#include "processes/shared_memory.hpp"

#include "layouts/basics/require.hpp"
#include "processes/watching/neighbours.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

namespace ringlab::processes {
namespace {

constexpr const char* memory_name = "ringlab";

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes) : bytes_(bytes), descriptor_(memfd_create(memory_name, MFD_CLOEXEC)) {
    require(descriptor_ >= 0, "cannot make shared memory: {}", std::strerror(errno));
    const bool sized = ftruncate(descriptor_, static_cast<off_t>(bytes_)) == 0;
    if (sized) map();
    const int reason = errno;
    if (memory_) return;
    close(descriptor_);
    fail("cannot make shared memory of {} bytes: {}", bytes_, std::strerror(reason));
}

SharedMemory::SharedMemory(const Address& address, std::size_t bytes) : bytes_(bytes) {
    // In another container the number means another process, and the descriptor anything.
    require(address.space == process_space(), "process {} is on another host or in another container", address.process);
    const auto path = fmt::format("/proc/{}/fd/{}", address.process, address.descriptor);
    std::error_code unreadable;
    const auto target = std::filesystem::read_symlink(path, unreadable).string();
    require(unreadable || target.starts_with(std::string("/memfd:") + memory_name),
            "process {} does not share memory but {}", address.process, target);
    descriptor_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
    require(descriptor_ >= 0, "cannot open the memory that process {} shares: {}", address.process,
            std::strerror(errno));
    map();
    const int reason = errno;
    all_have_it();
    require(memory_ != nullptr, "cannot map shared memory of {} bytes: {}", bytes_, std::strerror(reason));
}

SharedMemory::~SharedMemory() {
    munmap(memory_, bytes_);
    all_have_it();
}

SharedMemory::Address SharedMemory::address() const { return {getpid(), process_space(), descriptor_}; }

void SharedMemory::all_have_it() {
    if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

void SharedMemory::map() {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (memory_ == MAP_FAILED) memory_ = nullptr;
}

}  // namespace ringlab::processes
