#pragma once

namespace ringlab::tests {

/// From now on every copy on a stream of this device lasts some milliseconds; -1: of none. So what others do meanwhile
/// to the memory that it reads and writes shows.
void slow_down_copies(int device);

}  // namespace ringlab::tests
