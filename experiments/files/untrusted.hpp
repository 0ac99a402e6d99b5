#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <type_traits>

namespace ringlab::experiments {

/// One end of the pipe between a child process and its parent. The other end gets what one end puts, piece by piece.
class PipeEnd {
public:
    /// With a limit, each piece that is put grants this process so many more seconds of processor time, and each piece
    /// that is got is waited for so many times six seconds at most.
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

    /// Throws Error if the other end has ended, or says that it failed; with its words then.
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

/// Reads a file that may be damaged, or made to do harm: `look` runs in a child process and alone touches the file;
/// `take` runs here and gets what it puts. An Error of `look` is thrown here.
///
/// HDF5 trusts what it reads: one wrong byte of metadata can make it follow wild pointers, allocate without bound or
/// not return, in the releases that distributions have as in newer ones. Checks before use would be a second HDF5
/// library; a child that only validates would read everything twice and still leave the bytes to HDF5 in here. So no
/// file of unknown origin is opened in this process. If HDF5 ends the child, or takes `limit_seconds` of processor time
/// between two pieces, this throws Error of one line that calls the file damaged; one too if the child comes to nothing
/// for six times as long on the clock, whatever holds it. The child does not outlive this process.
void read_untrusted(const std::filesystem::path& file, const std::function<void(PipeEnd& to_parent)>& look,
                    const std::function<void(PipeEnd& from_child)>& take, int limit_seconds = 10);

/// Throws Error if `path` is there and no regular file: a FIFO would wait for a writer, perhaps for ever. `what` is
/// what to call it: "input".
void require_regular_file(const std::filesystem::path& path, const std::string& what);

}  // namespace ringlab::experiments
