#pragma once

#include <chrono>
#include <cstddef>

namespace ringlab::tests {

/// From now on every copy on a stream of this device lasts so long; -1: of none. So what others do meanwhile to the
/// memory that it reads and writes shows.
void slow_down_copies(int device, std::chrono::milliseconds time = std::chrono::milliseconds(3));

/// Another thread begins to capture a graph, or ends it. Meanwhile threads may ask events only in the relaxed mode.
void capture_a_graph(bool begins);

/// From now on no memory of another process can be opened on this device; -1: on all.
void open_no_memory_of_others(int device);

/// From now on no allocation on this device may be larger; -1: on none.
void limit_allocations(int device, std::size_t bytes = 0);

/// How many events this thread has recorded so far.
int events_recorded();

/// How many attends have begun so far before their work list was on the device.
int attends_without_work_list();

}  // namespace ringlab::tests
