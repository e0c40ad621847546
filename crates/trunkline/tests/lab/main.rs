//! Tests with real servers, real nodes and a real (emulated) link, in network namespaces.
//!
//! Most need root, /dev/net/tun and the servers; without them each prints on standard error why it
//! was skipped, and passes. A test whose result depends on the link's timing runs alone, because that
//! timing depends on this machine's processors. Of the others two run at a time.

mod addresses;
mod around;
mod bridge;
mod calibrate;
mod campaign;
mod circuit;
mod control;
mod demo;
mod diagnosis;
mod emulator;
mod estimate;
mod exit_codes;
mod failures;
mod full_disk;
mod http;
mod https;
mod kernel_smb;
mod leftovers;
mod many;
mod mapi;
mod one_ended;
mod peers;
mod reduction_ends;
mod setting;
mod smb;
mod turn_up;
