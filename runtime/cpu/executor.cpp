extern "C" __attribute__((visibility("default"))) int iosched_abi_version() { return 0; }
