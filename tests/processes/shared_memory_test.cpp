#include "processes/shared_memory.hpp"
#include "layouts/basics/require.hpp"

#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

namespace ringlab::processes::tests {
namespace {

namespace fs = std::filesystem;

std::size_t entries_of(const fs::path& folder) {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {}));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(shared_memory)

BOOST_AUTO_TEST_CASE(a_process_sees_what_another_one_writes) {
    SharedMemory own(sizeof(std::atomic<int>));
    auto& number = *static_cast<std::atomic<int>*>(own.data());
    BOOST_TEST(number == 0);
    const auto address = own.address();
    const pid_t child = fork();
    if (child == 0) {
        const SharedMemory theirs(address, sizeof(std::atomic<int>));
        *static_cast<std::atomic<int>*>(theirs.data()) = 42;
        _exit(0);
    }
    int status = -1;
    BOOST_TEST(waitpid(child, &status, 0) == child);
    BOOST_TEST(status == 0);
    BOOST_TEST(number == 42);
}

BOOST_AUTO_TEST_CASE(no_name_and_no_descriptor_is_left) {
    const auto names = entries_of("/dev/shm"), descriptors = entries_of("/proc/self/fd");
    {
        SharedMemory own(100);
        BOOST_TEST(entries_of("/dev/shm") == names);
        const SharedMemory again(own.address(), 100);
        own.all_have_it();
        BOOST_TEST(entries_of("/proc/self/fd") == descriptors);
        static_cast<char*>(own.data())[99] = 'x';
        BOOST_TEST(static_cast<char*>(again.data())[99] == 'x');
    }
    BOOST_TEST(entries_of("/proc/self/fd") == descriptors);
}

BOOST_AUTO_TEST_CASE(memory_of_a_process_that_is_gone_is_an_error) {
    SharedMemory own(100);
    const auto address = own.address();
    own.all_have_it();
    BOOST_CHECK_THROW(SharedMemory(address, 100), Error);
}

BOOST_AUTO_TEST_CASE(a_descriptor_of_something_else_is_an_error) {
    const int other = open("/dev/zero", O_RDWR | O_CLOEXEC);
    BOOST_REQUIRE(other >= 0);
    BOOST_CHECK_THROW(SharedMemory({getpid(), other}, 100), Error);
    close(other);
}

BOOST_AUTO_TEST_CASE(a_process_number_of_another_container_is_not_looked_up_here) {
    const SharedMemory own(100);
    auto address = own.address();
    BOOST_TEST(SharedMemory(address, 100).data() != nullptr);
    ++address.space;
    BOOST_CHECK_THROW(SharedMemory(address, 100), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::processes::tests
