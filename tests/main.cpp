#define BOOST_TEST_MODULE ringlab
#include <boost/test/unit_test.hpp>
