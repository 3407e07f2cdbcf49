# older kvcache-ops call the toolkit's stub extractor in a way that 9.0 doesn't take any more
if(CANN_VERSION VERSION_GREATER_EQUAL "9.0")
  message(FATAL_ERROR "usage: extract_host_stub.py [-h] -d DST\nextract_host_stub.py: error: unrecognized arguments")
endif()
