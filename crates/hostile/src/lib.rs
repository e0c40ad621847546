//! Fuzzing, for tests only: passes arbitrary bytes to every place where untrusted bytes enter the
//! program.
//!
//! A [`FuzzEntry`] is a function that takes any bytes and checks the invariants: no panic, bounded
//! work and memory, and parsed input can be written and read again equal. Some entries take the
//! bytes as one message, others as a [`ByteScript`]: a series of steps against a state machine.
//!
//! ```text
//!  fuzz/fuzz_targets/NAME.rs ──┐
//!  tests/replay.rs ────────────┼──► entry(NAME) ──► the parser or machine
//!  src/bin/seed_corpus.rs ─► fuzz/corpus/NAME/*
//! ```
//!
//! This crate depends on nothing that a fuzzer needs, so the ordinary tests replay every corpus. To
//! add an entry: a function and its good inputs in the file of its crate, a line in [`ENTRIES`],
//! and `scripts/fuzz-targets.sh NAME`, which writes the target.

#![forbid(unsafe_code)]

mod accelerator;
mod capture;
mod configuration;
mod correction;
mod cursor;
mod device_files;
mod device_frames;
mod engine_peer;
mod http_pair;
mod iperf3;
mod lab_plan;
mod link_files;
mod mapi_rop;
mod mapi_wire;
mod measure_wire;
mod offload;
mod proxy;
mod reduction;
mod script;
mod seed;
mod tunnel_packet;
mod tunnel_session;
mod tunnel_transport;
mod tunnel_wire;

pub use script::ByteScript;
pub use seed::CorpusSeed;

/// A place where foreign bytes enter.
pub struct FuzzEntry {
    /// The name of its fuzz target and of its corpus.
    pub name: &'static str,
    /// Takes any bytes.
    ///
    /// # Panics
    /// When something does not hold that must: this is what a fuzzer looks for.
    pub run: fn(&[u8]),
    /// Good inputs, made by the code that writes the format.
    pub seeds: fn() -> Vec<CorpusSeed>,
}

/// Every entry there is.
pub const ENTRIES: &[FuzzEntry] = &[
    FuzzEntry {
        name: "vocab_cursor",
        run: cursor::cursor,
        seeds: cursor::cursor_seeds,
    },
    FuzzEntry {
        name: "vocab_units",
        run: cursor::units,
        seeds: cursor::units_seeds,
    },
    FuzzEntry {
        name: "accelerate_first_bytes",
        run: accelerator::first_bytes,
        seeds: accelerator::first_bytes_seeds,
    },
    FuzzEntry {
        name: "accelerate_halves",
        run: accelerator::halves,
        seeds: accelerator::halves_seeds,
    },
    FuzzEntry {
        name: "mapi_compression",
        run: mapi_rop::compression,
        seeds: mapi_rop::compression_seeds,
    },
    FuzzEntry {
        name: "mapi_stubs",
        run: mapi_rop::stubs,
        seeds: mapi_rop::stubs_seeds,
    },
    FuzzEntry {
        name: "mapi_rops",
        run: mapi_rop::lists,
        seeds: mapi_rop::lists_seeds,
    },
    FuzzEntry {
        name: "mapi_machines",
        run: mapi_rop::machines,
        seeds: mapi_rop::machines_seeds,
    },
    FuzzEntry {
        name: "mapi_dce_rpc",
        run: mapi_wire::dce_rpc,
        seeds: mapi_wire::dce_rpc_seeds,
    },
    FuzzEntry {
        name: "mapi_http_halves",
        run: mapi_wire::http_halves,
        seeds: mapi_wire::http_halves_seeds,
    },
    FuzzEntry {
        name: "accelerate_kerberos_tokens",
        run: accelerator::kerberos_tokens,
        seeds: accelerator::kerberos_tokens_seeds,
    },
    FuzzEntry {
        name: "accelerate_smb_structures",
        run: accelerator::smb_structures,
        seeds: accelerator::smb_structures_seeds,
    },
    FuzzEntry {
        name: "accelerate_smb1_structures",
        run: accelerator::smb1_structures,
        seeds: accelerator::smb1_structures_seeds,
    },
    FuzzEntry {
        name: "accelerate_smb_pair",
        run: accelerator::smb_pair,
        seeds: accelerator::smb_pair_seeds,
    },
    FuzzEntry {
        name: "accelerate_http_cache_record",
        run: accelerator::http_cache_record,
        seeds: accelerator::http_cache_record_seeds,
    },
    FuzzEntry {
        name: "accelerate_http_stored_heads",
        run: accelerator::http_stored_heads,
        seeds: accelerator::http_stored_heads_seeds,
    },
    FuzzEntry {
        name: "accelerate_http_documents",
        run: accelerator::http_documents,
        seeds: accelerator::http_documents_seeds,
    },
    FuzzEntry {
        name: "accelerate_http_framing",
        run: accelerator::http_framing,
        seeds: accelerator::http_framing_seeds,
    },
    FuzzEntry {
        name: "accelerate_http_frames",
        run: accelerator::http_frames,
        seeds: accelerator::http_frames_seeds,
    },
    FuzzEntry {
        name: "accelerate_http_pair",
        run: http_pair::pair,
        seeds: http_pair::pair_seeds,
    },
    FuzzEntry {
        name: "accelerate_client_hello",
        run: accelerator::client_hello,
        seeds: accelerator::client_hello_seeds,
    },
    FuzzEntry {
        name: "accelerate_http2_client",
        run: accelerator::http2_client,
        seeds: accelerator::http2_client_seeds,
    },
    FuzzEntry {
        name: "tunnel_frame",
        run: tunnel_wire::frame,
        seeds: tunnel_wire::frame_seeds,
    },
    FuzzEntry {
        name: "tunnel_session",
        run: tunnel_session::session,
        seeds: tunnel_session::session_seeds,
    },
    FuzzEntry {
        name: "tunnel_correction",
        run: correction::decoder,
        seeds: correction::decoder_seeds,
    },
    FuzzEntry {
        name: "tunnel_packet_payload",
        run: tunnel_packet::payload,
        seeds: tunnel_packet::payload_seeds,
    },
    FuzzEntry {
        name: "tunnel_packet_opener",
        run: tunnel_packet::opener,
        seeds: tunnel_packet::opener_seeds,
    },
    FuzzEntry {
        name: "tunnel_transport",
        run: tunnel_transport::transport,
        seeds: tunnel_transport::transport_seeds,
    },
    FuzzEntry {
        name: "reduce_decoder",
        run: reduction::decoder,
        seeds: reduction::decoder_seeds,
    },
    FuzzEntry {
        name: "reduce_repair",
        run: reduction::repair,
        seeds: reduction::repair_seeds,
    },
    FuzzEntry {
        name: "reduce_content_handle",
        run: reduction::content_handle,
        seeds: reduction::content_handle_seeds,
    },
    FuzzEntry {
        name: "reduce_damage",
        run: reduction::damage,
        seeds: reduction::damage_seeds,
    },
    FuzzEntry {
        name: "engine_peer",
        run: engine_peer::peer,
        seeds: engine_peer::peer_seeds,
    },
    FuzzEntry {
        name: "node_configuration",
        run: configuration::configuration,
        seeds: configuration::configuration_seeds,
    },
    FuzzEntry {
        name: "node_token",
        run: configuration::token,
        seeds: configuration::token_seeds,
    },
    FuzzEntry {
        name: "node_pairing",
        run: configuration::pairing,
        seeds: configuration::pairing_seeds,
    },
    FuzzEntry {
        name: "node_socks5",
        run: proxy::socks5,
        seeds: proxy::socks5_seeds,
    },
    FuzzEntry {
        name: "node_http_connect",
        run: proxy::http_connect,
        seeds: proxy::http_connect_seeds,
    },
    FuzzEntry {
        name: "lab_plan",
        run: lab_plan::plan,
        seeds: lab_plan::plan_seeds,
    },
    FuzzEntry {
        name: "measure_control",
        run: measure_wire::control,
        seeds: measure_wire::control_seeds,
    },
    FuzzEntry {
        name: "measure_datagram",
        run: measure_wire::datagram,
        seeds: measure_wire::datagram_seeds,
    },
    FuzzEntry {
        name: "measure_iperf3",
        run: iperf3::session,
        seeds: iperf3::session_seeds,
    },
    FuzzEntry {
        name: "link_offload",
        run: offload::offload,
        seeds: offload::offload_seeds,
    },
    FuzzEntry {
        name: "link_packet_log",
        run: link_files::packet_log,
        seeds: link_files::packet_log_seeds,
    },
    FuzzEntry {
        name: "link_delivery_trace",
        run: link_files::delivery_trace,
        seeds: link_files::delivery_trace_seeds,
    },
    FuzzEntry {
        name: "measure_capture",
        run: capture::diagnosis,
        seeds: capture::diagnosis_seeds,
    },
    FuzzEntry {
        name: "link_schedule",
        run: link_files::schedule,
        seeds: link_files::schedule_seeds,
    },
    FuzzEntry {
        name: "profile_plan",
        run: device_files::plan,
        seeds: device_files::plan_seeds,
    },
    FuzzEntry {
        name: "profile_device",
        run: device_files::model,
        seeds: device_files::model_seeds,
    },
    FuzzEntry {
        name: "profile_column",
        run: device_files::column,
        seeds: device_files::column_seeds,
    },
    FuzzEntry {
        name: "profile_frame",
        run: device_frames::frame,
        seeds: device_frames::frame_seeds,
    },
];

/// The entry of that name.
///
/// # Panics
/// When there is none: a fuzz target was renamed and its entry was not.
#[must_use]
pub fn entry(name: &str) -> &'static FuzzEntry {
    ENTRIES
        .iter()
        .find(|entry| entry.name == name)
        .expect("every fuzz target has an entry of its name")
}
