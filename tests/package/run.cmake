# Installs BUILD into FOLDER, builds the project SOURCE against it with GENERATOR (a system may have no other than what
# BUILD was made with) and runs it. For ctest.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(status)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "${line}: ${status}")
  endif()
endfunction()

file(REMOVE_RECURSE ${FOLDER})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${FOLDER}/installed)
run(${CMAKE_COMMAND} -G "${GENERATOR}" -S ${SOURCE} -B ${FOLDER}/build -DCMAKE_PREFIX_PATH=${FOLDER}/installed
  -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${FOLDER}/build)
run(${FOLDER}/build/predict_a_ring ${FOLDER}/installed/share/ringlab/machines/h200_nvswitch_copy_engine.toml causal ring zigzag)
