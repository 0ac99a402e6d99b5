#pragma once

#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"

#include <memory>
#include <vector>

namespace ringlab::gpu {

/// Device memory in stream order, from whoever calls this library.
class StreamMemory {
public:
    virtual ~StreamMemory() = default;

    /// Memory, aligned to 256 bytes, for work that `stream` is given from now on. Throws NoMemory if there is none.
    virtual void* allocate(std::size_t bytes, cudaStream_t stream) = 0;

    /// When all work that uses the memory has been enqueued: work that its stream is given later may get it.
    virtual void release(void* memory) noexcept = 0;
};

/// Memory that the tables of a ring's plans share: pinned memory, from which they are copied, and words on the host.
class TableStore {
public:
    /// Tables come from `source`; they are copied, and then used, in the order of the stream `order`.
    TableStore(StreamMemory& source, cudaStream_t order) : memory(source), stream(order) {}

    /// Pinned memory from which one copy at a time is under way.
    class Staging {
    public:
        explicit Staging(std::size_t bytes);
        ~Staging();
        Staging(const Staging&) = delete;
        Staging& operator=(const Staging&) = delete;

        char* data() const { return static_cast<char*>(data_); }
        std::size_t bytes() const { return bytes_; }
        Event copied{Event::Use::ordering};

    private:
        void* data_ = nullptr;
        std::size_t bytes_;
    };

    /// Has at least so many bytes. Waits for the device only if very many copies are under way.
    std::unique_ptr<Staging> take(std::size_t bytes);
    /// When its copy has been enqueued, and `copied` behind it.
    void give_back(std::unique_ptr<Staging> staging) { staging_.push_back(std::move(staging)); }

    /// See DeviceMemory::host_word(). The word must go before the store does.
    std::shared_ptr<std::uint32_t> host_word();

    std::int64_t host_bytes() const;

    StreamMemory& memory;
    const cudaStream_t stream;
    std::size_t latest_bytes = 0;  ///< of the plan that was made last

private:
    static constexpr std::size_t most_staging = 16, words_in_page = 1024;

    std::vector<std::unique_ptr<Staging>> staging_;  // the one that was given back first comes first
    std::vector<std::unique_ptr<Staging>> pages_;    // of words
    std::vector<std::uint32_t*> words_;              // that nobody has
};

/// Device memory of one plan: work lists and other tables. What is uploaded is collected on the host, and copied all at
/// once by flush(). So making a plan does not wait for the device, and takes one allocation if the plan is as large as
/// the one before.
class PlanTables : public DeviceMemory {
public:
    explicit PlanTables(TableStore& store) : store_(store) {}
    ~PlanTables() override;
    PlanTables(const PlanTables&) = delete;
    PlanTables& operator=(const PlanTables&) = delete;

    void* allocate(std::size_t bytes) override;
    void release(void*) noexcept override {}  // all goes together
    void upload(void* to, const void* from, std::size_t bytes) override;
    std::shared_ptr<std::uint32_t> host_word() override { return store_.host_word(); }

    /// Enqueues the copies. Nothing is uploaded afterwards.
    void flush();

private:
    struct Chunk {
        char* device = nullptr;
        std::size_t bytes = 0, used = 0;
        std::unique_ptr<TableStore::Staging> host;  // until flush()
    };

    TableStore& store_;
    std::vector<Chunk> chunks_;
};

}  // namespace ringlab::gpu
