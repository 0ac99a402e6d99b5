# What the machine must have; cmake/install_packages.sh installs it on Debian and Ubuntu.
if(RINGLAB_STATIC)
  set(Boost_USE_STATIC_LIBS ON)
  set(HDF5_USE_STATIC_LIBRARIES ON)
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(Boost 1.74 REQUIRED COMPONENTS program_options)
find_package(HDF5 1.10 REQUIRED COMPONENTS C HL)
find_package(xtensor REQUIRED)
find_package(xsimd REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(nlohmann_json REQUIRED)

set(BLA_VENDOR OpenBLAS)
find_package(BLAS REQUIRED)

if(RINGLAB_TESTS)
  find_package(Boost 1.74 REQUIRED COMPONENTS program_options unit_test_framework)
endif()
if(RINGLAB_MPI)
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
