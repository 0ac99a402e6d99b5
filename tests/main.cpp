#define BOOST_TEST_MODULE ringlab
#include "tests/thinning.hpp"

#include <boost/test/unit_test.hpp>

using ringlab::tests::ThinningReport;
BOOST_TEST_GLOBAL_FIXTURE(ThinningReport);
