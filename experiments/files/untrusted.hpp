#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <type_traits>

namespace ringlab::experiments {

/// One end of the pipe between a child process and its parent. What one end puts, piece by piece, the other end gets.
class PipeEnd {
public:
    /// With a limit of N seconds, this process gets N more seconds of processor time with each piece that it puts, and
    /// waits at most 6 N seconds for each piece that it gets.
    explicit PipeEnd(int descriptor, int limit_seconds = 0) : descriptor_(descriptor), limit_seconds_(limit_seconds) {}
    ~PipeEnd();
    PipeEnd(const PipeEnd&) = delete;
    PipeEnd& operator=(const PipeEnd&) = delete;

    template <class T>
    void put(const T& value) {
        put_values(std::span(&value, 1));
    }
    template <class T>
    void put_values(std::span<T> values) {
        static_assert(std::is_trivially_copyable_v<T>);
        put_bytes(std::as_bytes(values));
    }
    void put_text(const std::string& text);

    /// Throws Error if the other end has ended, or reports that it failed; the message is then that of the other end.
    template <class T>
    T get() {
        T value{};
        get_values(std::span(&value, 1));
        return value;
    }
    template <class T>
    void get_values(std::span<T> values) {
        static_assert(std::is_trivially_copyable_v<T>);
        get_bytes(std::as_writable_bytes(values));
    }
    std::string get_text();

    void put_failure(const std::string& text);

private:
    void put_bytes(std::span<const std::byte> bytes);
    void get_bytes(std::span<std::byte> bytes);
    void write_all(std::span<const std::byte> bytes);
    void wait_for_more();
    void read_all(std::span<std::byte> bytes);

    int descriptor_;
    int limit_seconds_;
};

/// Reads a file that may be damaged or malicious. `look` runs in a child process, and only this process opens the file.
/// `take` runs in this process and gets what `look` puts into the pipe. An Error of `look` is thrown here.
///
/// The reason: HDF5 trusts what it reads. One wrong byte of metadata can make it follow wild pointers, allocate without
/// bound or never return, in old and new releases. Checks before use would amount to a second HDF5 library. A child
/// process that only validates would read everything twice, and HDF5 would still read the bytes in this process.
///
/// If HDF5 ends the child, or takes `limit_seconds` of processor time between two pieces, this throws an Error that
/// calls the file damaged. It also does so if no piece comes for six times as long on the clock. The child ends with
/// this process.
void read_untrusted(const std::filesystem::path& file, const std::function<void(PipeEnd& to_parent)>& look,
                    const std::function<void(PipeEnd& from_child)>& take, int limit_seconds = 10);

/// Throws Error if there is something at `path` that is not a regular file, such as a FIFO, which could block for ever.
/// `what` names the kind of file in the message: "input".
void require_regular_file(const std::filesystem::path& path, const std::string& what);

}  // namespace ringlab::experiments
