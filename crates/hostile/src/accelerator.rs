//! Entries of `accelerate`: naming a protocol by its first bytes, and every registered half.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use accelerate::credentials::{self, DelegatedKeys};
use accelerate::settings::{AcceleratorSettings, SettingsTable};
use accelerate::shared::{HalfContext, StartContext};
use accelerate::{
    AcceleratorInput, AcceleratorOutput, LettingGo, WanEnd, detect, http, registry, smb,
};
use bytes::Bytes;
use engine::ACCELERATORS;
use vocab::{FlowSegment, SeededRandom, SegmentKind, Time};

use crate::ByteScript;
use crate::seed::{CorpusSeed, seed, sized};

/// Outputs after one input past which a half is taken to be in a circle.
pub(crate) const MOST_OUTPUTS: usize = 10_000;
pub(crate) const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;
const SMB_PORT: u16 = 445;

/// Any first bytes have a protocol or none.
pub(crate) fn first_bytes(bytes: &[u8]) {
    let _ = detect::by_first_bytes(ACCELERATORS, bytes);
    let looked_at = &bytes[..bytes.len().min(detect::LOOK_LIMIT)];
    assert_eq!(
        detect::by_first_bytes(ACCELERATORS, bytes),
        detect::by_first_bytes(ACCELERATORS, looked_at),
        "detection looked further than it says"
    );
}

/// Drives one half of one accelerator with any inputs in any order. Each drain ends, no timeout in
/// the past is requested without output, and nothing follows after it has let go.
pub(crate) fn halves(bytes: &[u8]) {
    let mut script = ByteScript::new(bytes);
    let entry = &ACCELERATORS[usize::from(script.byte()) % ACCELERATORS.len()];
    let chosen = script.byte();
    let side = if chosen.is_multiple_of(2) {
        WanEnd::Near
    } else {
        WanEnd::Far
    };
    let mut state = settings(entry).start(start());
    state.set_calendar(Time::ZERO, Duration::from_secs(1_767_225_600));
    let mut half = state.build(side, context(port_of(entry, chosen)));
    let mut now = Time::default();
    half.handle(now, AcceleratorInput::Start);
    while let Some(step) = script.step() {
        // The engine drops a half that has let go.
        if drain(half.as_mut(), now) {
            return;
        }
        let input = match step % 8 {
            0 | 1 => AcceleratorInput::Lan(Bytes::copy_from_slice(script.bytes())),
            2 => {
                AcceleratorInput::Wan(FlowSegment::payload(Bytes::copy_from_slice(script.bytes())))
            }
            3 => {
                AcceleratorInput::Wan(FlowSegment::control(Bytes::copy_from_slice(script.bytes())))
            }
            4 => AcceleratorInput::Wan(FlowSegment::frame(Bytes::copy_from_slice(script.bytes()))),
            5 => AcceleratorInput::LanFinished,
            6 => AcceleratorInput::WanFinished,
            _ => {
                let Some(at) = half.poll_timeout() else {
                    continue;
                };
                now = now.max(at);
                AcceleratorInput::Timeout
            }
        };
        half.handle(now, input);
    }
    drain(half.as_mut(), now);
}

/// The server's port of a flow. An accelerator with two kinds of halves tells them apart by it.
fn port_of(entry: &registry::AcceleratorEntry, chosen: u8) -> u16 {
    match (*entry == http::ENTRY, chosen / 2 % 2) {
        (true, 0) => HTTP_PORT,
        (true, _) => HTTPS_PORT,
        (false, _) => SMB_PORT,
    }
}

/// Bytes as every structure of SMB 2.
pub(crate) fn smb_structures(bytes: &[u8]) {
    smb::testing::structures(bytes);
}

/// Bytes as every structure of SMB 1.
pub(crate) fn smb1_structures(bytes: &[u8]) {
    smb::testing::smb1_structures(bytes);
}

/// Bytes as per-message tokens of Kerberos.
pub(crate) fn kerberos_tokens(bytes: &[u8]) {
    credentials::testing::message_tokens(bytes);
}

/// Good inputs for [`kerberos_tokens`].
pub(crate) fn kerberos_tokens_seeds() -> Vec<CorpusSeed> {
    let samples = credentials::testing::sample_message_tokens().into_iter();
    samples.map(|(name, bytes)| seed(name, bytes)).collect()
}

/// Bytes as messages of HTTP/1, in one piece and in many.
pub(crate) fn http_framing(bytes: &[u8]) {
    http::testing::framing(bytes);
}

/// Bytes as a record of the HTTP cache's index.
pub(crate) fn http_cache_record(bytes: &[u8]) {
    http::testing::stored_record(bytes);
}

/// Good inputs for [`http_cache_record`].
pub(crate) fn http_cache_record_seeds() -> Vec<CorpusSeed> {
    vec![seed("stored", http::testing::sample_record())]
}

/// Bytes as the heads of a response that is stored and of the 304 that confirms it.
pub(crate) fn http_stored_heads(bytes: &[u8]) {
    http::testing::stored_heads(bytes);
}

/// Good inputs for [`http_stored_heads`].
pub(crate) fn http_stored_heads_seeds() -> Vec<CorpusSeed> {
    vec![seed("heads", http::testing::HEADS)]
}

/// Bytes as a frame between two halves of HTTP.
pub(crate) fn http_frames(bytes: &[u8]) {
    http::testing::frames(bytes);
}

/// Good inputs for [`http_frames`].
pub(crate) fn http_frames_seeds() -> Vec<CorpusSeed> {
    let frames = http::testing::sample_frames().into_iter();
    frames.map(|(name, bytes)| seed(name, bytes)).collect()
}

/// Bytes as the first message of a TLS client.
pub(crate) fn client_hello(bytes: &[u8]) {
    http::testing::client_hello(bytes);
}

/// Good inputs for [`client_hello`].
pub(crate) fn client_hello_seeds() -> Vec<CorpusSeed> {
    vec![seed("hello", http::testing::sample_hello())]
}

/// Bytes as those of an HTTP/2 client behind its preface.
pub(crate) fn http2_client(bytes: &[u8]) {
    http::testing::http2_client(bytes);
}

/// Good inputs for [`http2_client`].
pub(crate) fn http2_client_seeds() -> Vec<CorpusSeed> {
    vec![seed("request", http::testing::HTTP2_REQUEST)]
}

/// Bytes as pages, style sheets, links and frames of prefetches.
pub(crate) fn http_documents(bytes: &[u8]) {
    http::testing::documents(bytes);
}

/// Good inputs for [`http_documents`].
pub(crate) fn http_documents_seeds() -> Vec<CorpusSeed> {
    let names = ["page", "style", "links"].into_iter();
    names
        .zip(http::testing::DOCUMENTS)
        .map(|(name, document)| seed(name, document))
        .collect()
}

/// Good inputs for [`http_framing`].
pub(crate) fn http_framing_seeds() -> Vec<CorpusSeed> {
    vec![
        seed("requests", http::testing::REQUESTS),
        seed("responses", http::testing::RESPONSES),
    ]
}

/// Both halves of the SMB accelerator back to back, between a client and a server that may say
/// anything. However that ends, nothing panics and nothing goes round in a circle.
pub(crate) fn smb_pair(bytes: &[u8]) {
    let mut script = ByteScript::new(bytes);
    let mut halves = [WanEnd::Near, WanEnd::Far]
        .map(|half| smb::build(half, smb::testing::settings(), SeededRandom::from_seed(1)));
    let mut now = Time::default();
    for half in &mut halves {
        half.handle(now, AcceleratorInput::Start);
    }
    while let Some(step) = script.step() {
        if !settle(&mut halves, now) {
            return;
        }
        let (at, input) = match step % 8 {
            0..=2 => (
                0,
                AcceleratorInput::Lan(Bytes::copy_from_slice(script.bytes())),
            ),
            3..=5 => (
                1,
                AcceleratorInput::Lan(Bytes::copy_from_slice(script.bytes())),
            ),
            6 => {
                let Some(at) = halves.iter().filter_map(|half| half.poll_timeout()).min() else {
                    continue;
                };
                now = now.max(at);
                halves[0].handle(now, AcceleratorInput::Timeout);
                (1, AcceleratorInput::Timeout)
            }
            _ => (
                usize::from(script.byte() % 2),
                AcceleratorInput::LanFinished,
            ),
        };
        halves[at].handle(now, input);
    }
    settle(&mut halves, now);
}

/// Carries what the halves say to each other until both are silent; false once one has let go.
fn settle(halves: &mut [Box<dyn accelerate::AcceleratorHalf>; 2], now: Time) -> bool {
    let mut asks: Option<usize> = None;
    for _ in 0..MOST_OUTPUTS {
        let from = match halves[0].poll_output() {
            Some(output) => Some((0, output)),
            None => halves[1].poll_output().map(|output| (1, output)),
        };
        let Some((from, output)) = from else {
            match asks.take() {
                Some(half) => halves[half].handle(now, AcceleratorInput::ClaimGranted),
                None => return true,
            }
            continue;
        };
        match output {
            AcceleratorOutput::ToWan(segment) => {
                halves[1 - from].handle(now, AcceleratorInput::Wan(segment))
            }
            AcceleratorOutput::FinishWan => {
                halves[1 - from].handle(now, AcceleratorInput::WanFinished)
            }
            AcceleratorOutput::LettingGo(_) => return false,
            AcceleratorOutput::Claim(_) => asks = Some(from),
            AcceleratorOutput::OpenServer
            | AcceleratorOutput::ToLan(_)
            | AcceleratorOutput::FinishLan
            | AcceleratorOutput::ClaimReleased
            | AcceleratorOutput::EndBody
            | AcceleratorOutput::Content(_)
            | AcceleratorOutput::OpenFlow
            | AcceleratorOutput::AnsweredHere(_)
            | AcceleratorOutput::Server(..) => {}
        }
    }
    panic!("more than {MOST_OUTPUTS} outputs after one input");
}

/// Settings with everything enabled.
pub(crate) fn settings(entry: &registry::AcceleratorEntry) -> Arc<dyn AcceleratorSettings> {
    if *entry == smb::ENTRY {
        return Arc::new(smb::testing::settings());
    }
    if *entry == http::ENTRY {
        return Arc::new(http::HttpSettings {
            is_on: true,
            ..http::HttpSettings::default()
        });
    }
    (entry.parse)(&SettingsTable::default()).expect("an empty table gives the defaults")
}

pub(crate) fn start() -> StartContext {
    StartContext {
        memory_max: 1 << 20,
        random: SeededRandom::from_seed(2),
        key: None,
    }
}

pub(crate) fn context(port: u16) -> HalfContext {
    let settings = smb::testing::settings();
    let host = |last| SocketAddr::from((Ipv4Addr::new(198, 18, 0, last), port));
    HalfContext {
        flow: 1,
        client: host(1),
        server: host(2),
        delegated: DelegatedKeys {
            accounts: settings.accounts,
            keytab: settings.keytab,
        },
        path_bytes: 0,
        random: SeededRandom::from_seed(1),
    }
}

/// Takes all outputs, and tells a half that asks that it is alone; whether it let go.
fn drain(half: &mut dyn accelerate::AcceleratorHalf, now: Time) -> bool {
    let mut gone = false;
    let mut asks = false;
    for _ in 0..MOST_OUTPUTS {
        match half.poll_output() {
            None if asks && !gone => {
                asks = false;
                half.handle(now, AcceleratorInput::ClaimGranted);
            }
            None => return gone,
            Some(output) => {
                assert!(!gone, "{output:?} after letting go");
                asks |= matches!(output, AcceleratorOutput::Claim(_));
                gone = matches!(
                    output,
                    AcceleratorOutput::LettingGo(LettingGo::LetGo { .. } | LettingGo::Close { .. })
                );
            }
        }
    }
    panic!("more than {MOST_OUTPUTS} outputs after one input");
}

/// Good inputs for [`first_bytes`].
pub(crate) fn first_bytes_seeds() -> Vec<CorpusSeed> {
    let tls: &[u8] = &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01];
    let smb2: &[u8] = b"\0\0\0\x40\xfeSMB\x40\0\0\0";
    let smb1: &[u8] = b"\0\0\0\x40\xffSMBr\0\0\0";
    let encrypted: &[u8] = b"\0\0\0\x40\xfdSMB\0\0\0\0";
    vec![
        seed("http", b"GET /index.html HTTP/1.1\r\nHost: a\r\n\r\n"),
        seed("http-answer", b"HTTP/1.1 200 OK\r\n\r\n"),
        seed("ftp", b"220 (vsFTPd 3.0.3)\r\n"),
        seed("smtp", b"220 mail.example ESMTP\r\n"),
        seed("ssh", b"SSH-2.0-OpenSSH_9.2\r\n"),
        seed("tls", tls),
        seed("smb2", smb2),
        seed("smb1", smb1),
        seed("smb3-encrypted", encrypted),
    ]
}

/// Good inputs for [`halves`].
pub(crate) fn halves_seeds() -> Vec<CorpusSeed> {
    let request = sized(b"GET / HTTP/1.1\r\n\r\n");
    let answer = sized(b"HTTP/1.1 204 No Content\r\n\r\n");
    let released = sized(&[0]);
    let near = [&[0, 0, 0][..], &request, &[5, 2], &answer, &[6]].concat();
    let far = [&[0, 1, 2][..], &request, &[6, 0], &answer, &[5]].concat();
    let released = [&[0, 0, 4][..], &released, &[0], &request].concat();
    let [smb_near, smb_far] = smb::testing::conversation();
    let [smb1_near, smb1_far] = smb::testing::smb1_conversation();
    let [signed_near, signed_far] = smb::testing::signed_conversation();
    let [sealed_near, sealed_far] = smb::testing::sealed_conversation();
    let [http_near, http_far] = http::testing::conversation();
    let hello = http::testing::sample_hello();
    vec![
        seed("http-near", [&[2, 0][..], &scripted(&http_near)].concat()),
        seed("http-far", [&[2, 1][..], &scripted(&http_far)].concat()),
        seed("https-near", [&[2, 2, 0][..], &sized(&hello)].concat()),
        seed("near", near),
        seed("far", far),
        seed("released", released),
        seed("smb-near", [&[1, 0][..], &scripted(&smb_near)].concat()),
        seed("smb-far", [&[1, 1][..], &scripted(&smb_far)].concat()),
        seed("smb1-near", [&[1, 0][..], &scripted(&smb1_near)].concat()),
        seed("smb1-far", [&[1, 1][..], &scripted(&smb1_far)].concat()),
        seed(
            "smb-signed-near",
            [&[1, 0][..], &scripted(&signed_near)].concat(),
        ),
        seed(
            "smb-signed-far",
            [&[1, 1][..], &scripted(&signed_far)].concat(),
        ),
        seed(
            "smb-sealed-near",
            [&[1, 0][..], &scripted(&sealed_near)].concat(),
        ),
        seed(
            "smb-sealed-far",
            [&[1, 1][..], &scripted(&sealed_far)].concat(),
        ),
    ]
}

/// Inputs as the steps of [`halves`].
fn scripted(inputs: &[AcceleratorInput]) -> Vec<u8> {
    let mut script = Vec::new();
    for input in inputs {
        let (step, bytes) = match input {
            AcceleratorInput::Lan(bytes) => (0, bytes),
            AcceleratorInput::Wan(segment) => match segment.kind {
                SegmentKind::Payload => (2, &segment.bytes),
                SegmentKind::Control => (3, &segment.bytes),
                SegmentKind::Frame => (4, &segment.bytes),
            },
            _ => continue,
        };
        script.push(step);
        script.extend(sized(bytes));
    }
    script
}

/// Good inputs for [`smb_structures`].
pub(crate) fn smb_structures_seeds() -> Vec<CorpusSeed> {
    let names = [
        "said-0", "said-1", "said-2", "said-3", "said-4", "said-5", "said-6", "said-7",
    ];
    let [near, far] = smb::testing::conversation();
    let said = near.iter().chain(&far).filter_map(|input| match input {
        AcceleratorInput::Lan(bytes) => Some(bytes.to_vec()),
        _ => None,
    });
    let mut seeds: Vec<CorpusSeed> = names
        .into_iter()
        .zip(said)
        .map(|(name, bytes)| seed(name, bytes))
        .collect();
    // Messages of a set-up with tokens, without their frames.
    let names = ["asked-0", "asked-1", "asked-2", "answered-0", "answered-1"];
    let [near, far] = smb::testing::signed_conversation();
    let said = |inputs: &[AcceleratorInput], count: usize| -> Vec<Vec<u8>> {
        let bytes = inputs.iter().filter_map(|input| match input {
            AcceleratorInput::Lan(bytes) => Some(bytes[4..].to_vec()),
            _ => None,
        });
        bytes.take(count).collect()
    };
    let set_up = said(&near, 3).into_iter().chain(said(&far, 2));
    seeds.extend(
        names
            .into_iter()
            .zip(set_up)
            .map(|(name, bytes)| seed(name, bytes)),
    );
    // Encrypted messages: the TREE_CONNECT and its answer.
    let names = ["sealed-asked", "sealed-answered"];
    let [near, far] = smb::testing::sealed_conversation();
    let sealed = [said(&near, 4).pop(), said(&far, 4).pop()];
    seeds.extend(
        names
            .into_iter()
            .zip(sealed.into_iter().flatten())
            .map(|(name, bytes)| seed(name, bytes)),
    );
    // What Kerberos says, in the clear and decrypted, and a keytab.
    let names = [
        "kerberos-token",
        "kerberos-answer",
        "kerberos-ap-req",
        "kerberos-ap-rep",
        "kerberos-ticket",
        "kerberos-authenticator",
        "kerberos-subkey",
        "keytab",
    ];
    let said = smb::testing::kerberos_structures().into_iter();
    let said = said.chain([smb::testing::keytab_file()]);
    seeds.extend(
        names
            .into_iter()
            .zip(said)
            .map(|(name, bytes)| seed(name, bytes)),
    );
    seeds
}

/// Good inputs for [`smb1_structures`]: what both hosts say, in the stream's order.
pub(crate) fn smb1_structures_seeds() -> Vec<CorpusSeed> {
    let [near, far] = smb::testing::smb1_conversation();
    let names = ["asked", "answered", "asked-close", "answered-close"];
    let whole = |inputs: &[AcceleratorInput]| -> Vec<u8> {
        let bytes = inputs.iter().filter_map(|input| match input {
            AcceleratorInput::Lan(bytes) => Some(bytes.to_vec()),
            _ => None,
        });
        bytes.flatten().collect()
    };
    // The last message of each by itself, without its frame.
    let last = |inputs: &[AcceleratorInput]| -> Vec<u8> {
        let bytes = inputs.iter().filter_map(|input| match input {
            AcceleratorInput::Lan(bytes) => bytes.get(4..).map(<[u8]>::to_vec),
            _ => None,
        });
        bytes.last().unwrap_or_default()
    };
    let said = [whole(&near), whole(&far), last(&near), last(&far)];
    names
        .into_iter()
        .zip(said)
        .map(|(name, bytes)| seed(name, bytes))
        .collect()
}

/// Good inputs for [`smb_pair`].
pub(crate) fn smb_pair_seeds() -> Vec<CorpusSeed> {
    vec![
        seed("smb1", turns(smb::testing::smb1_conversation())),
        seed("conversation", turns(smb::testing::conversation())),
        seed("signed", turns(smb::testing::signed_conversation())),
        seed("kerberos", turns(smb::testing::kerberos_conversation())),
        seed("sealed", turns(smb::testing::sealed_conversation())),
    ]
}

/// Concatenates both hosts' data turn by turn: the client asks, the server answers.
fn turns([near, far]: [Vec<AcceleratorInput>; 2]) -> Vec<u8> {
    let said = |inputs: &[AcceleratorInput]| -> Vec<Vec<u8>> {
        let bytes = inputs.iter().filter_map(|input| match input {
            AcceleratorInput::Lan(bytes) => Some(sized(bytes)),
            _ => None,
        });
        bytes.collect()
    };
    let mut script = Vec::new();
    let (asked, answered) = (said(&near), said(&far));
    for turn in 0..asked.len().max(answered.len()) {
        for (step, side) in [(0, &asked), (3, &answered)] {
            if let Some(bytes) = side.get(turn) {
                script.push(step);
                script.extend(bytes);
            }
        }
    }
    script
}
