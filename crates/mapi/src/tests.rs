//! The two halves between a client and a server that log in by NTLM or Kerberos, with bytes in
//! pieces and in any order of the two directions.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use accelerate::credentials::kerberos::EncryptionType;
use accelerate::credentials::testing::{KerberosTokens, challenge, log_in};
use accelerate::credentials::{DelegatedAccounts, DelegatedKeys};
use accelerate::shared::SharedHandle;
use accelerate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, LettingGo, ReasonCode};
use bytes::Bytes;
use vocab::{FlowSegment, SeededRandom, SegmentKind, Time};
use zeroize::Zeroizing;

use crate::emsmdb::EMSMDB;
use crate::far::MapiFarHalf;
use crate::near::MapiNearHalf;
use crate::rop::tactics::{SessionPlace, SessionTable};
use crate::rpc::calls::{CallGatherer, GatheredCall, GatheredFragment};
use crate::rpc::fragments::{CallFrame, CallProtection, unprotected};
use crate::rpc::kerberos::KerberosSecret;
use crate::rpc::ntlm::NtlmSecret;
use crate::rpc::pdu::PduKind;
use crate::rpc::protector::{MessageOrigin, PduProtector, SessionSecret};
use crate::rpc::security::{OpenedPdu, SecuritySetUp};
use crate::rpc::splitter::PduSplitter;
use crate::rpc::splitter::{RawPdu, SecurityTrailer, level};
use crate::testing::{auth3, bind, bind_ack, request, response};

const CHALLENGE: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
const CONTEXT: u32 = 79_231;
/// An interface that is no mailbox's.
const OTHER: [u8; 16] = [9; 16];

fn place() -> SessionPlace {
    let table = SharedHandle::new(SessionTable::default());
    SessionPlace::new(table, 1, [198, 18, 1, 2].into(), [198, 18, 2, 2].into())
}

/// One end of the WAN: a half, or nothing after it was let go.
struct WanSide {
    half: Option<Box<dyn AcceleratorHalf>>,
    /// Segments that the other side has sent.
    inbox: VecDeque<Option<FlowSegment>>,
    to_host: Vec<u8>,
    outcome: Option<LettingGo>,
}

/// Both ends (0 is near) and what crossed between them.
struct HalfPair {
    sides: [WanSide; 2],
    payload: Vec<u8>,
    control: Vec<u8>,
    is_closed: bool,
}

impl HalfPair {
    fn new(delegated: DelegatedKeys, may_store: bool) -> Self {
        let side = |half| WanSide {
            half: Some(half),
            inbox: VecDeque::new(),
            to_host: Vec::new(),
            outcome: None,
        };
        let near = MapiNearHalf::new(may_store);
        let far = MapiFarHalf::new(may_store, delegated, place());
        let mut pair = Self {
            sides: [side(Box::new(near)), side(Box::new(far))],
            payload: Vec::new(),
            control: Vec::new(),
            is_closed: false,
        };
        pair.input(0, AcceleratorInput::Start);
        pair.input(1, AcceleratorInput::Start);
        pair
    }

    fn input(&mut self, side: usize, input: AcceleratorInput) {
        if let Some(half) = &mut self.sides[side].half {
            half.handle(Time::ZERO, input);
            return self.drain(side);
        }
        // As the engine does without a half.
        match input {
            AcceleratorInput::Lan(bytes) => self.send(side, Some(FlowSegment::payload(bytes))),
            AcceleratorInput::Wan(segment) => self.sides[side].to_host.extend(segment.bytes),
            _ => {}
        }
    }

    fn send(&mut self, side: usize, segment: Option<FlowSegment>) {
        if let Some(segment) = &segment {
            match segment.kind {
                SegmentKind::Payload => self.payload.extend(&segment.bytes),
                SegmentKind::Control => self.control.extend(&segment.bytes),
                SegmentKind::Frame => {}
            }
        }
        self.sides[1 - side].inbox.push_back(segment);
    }

    fn drain(&mut self, side: usize) {
        while let Some(output) = self.sides[side]
            .half
            .as_mut()
            .and_then(|half| half.poll_output())
        {
            match output {
                AcceleratorOutput::ToLan(bytes) => self.sides[side].to_host.extend(bytes),
                AcceleratorOutput::ToWan(segment) => self.send(side, Some(segment)),
                AcceleratorOutput::LettingGo(outcome) => {
                    self.sides[side].outcome = Some(outcome);
                    self.sides[side].half = None;
                    self.is_closed |= matches!(outcome, LettingGo::Close { .. });
                    self.send(side, None);
                }
                _ => {}
            }
        }
    }

    /// Hands the next segment of the WAN to this side; false if there is none.
    fn deliver(&mut self, side: usize) -> bool {
        match self.sides[side].inbox.pop_front() {
            None => return false,
            Some(None) => self.sides[side].half = None,
            Some(Some(segment)) => self.input(side, AcceleratorInput::Wan(segment)),
        }
        true
    }

    fn outcome(&self) -> Option<LettingGo> {
        self.sides[1].outcome.or(self.sides[0].outcome)
    }
}

/// The next PDU of a host: its bytes, and the number of bytes that must arrive from the other host first.
struct ScriptedPdu {
    bytes: Vec<u8>,
    after: usize,
}

/// Plays both hosts' scripts in pieces, with this chance, to the end or a close.
fn play(pair: &mut HalfPair, scripts: [Vec<ScriptedPdu>; 2], random: &mut SeededRandom) {
    let mut waiting: [VecDeque<u8>; 2] = Default::default();
    let mut scripts = scripts.map(VecDeque::from);
    loop {
        for side in 0..2 {
            while let Some(next) = scripts[side].front()
                && pair.sides[side].to_host.len() >= next.after
            {
                waiting[side].extend(scripts[side].pop_front().unwrap().bytes);
            }
        }
        if pair.is_closed {
            return;
        }
        let side = random.below(2) as usize;
        let has_sent = !waiting[side].is_empty() && random.below(2) == 0;
        if has_sent {
            let most = waiting[side].len().min(1 + random.below(3_000) as usize);
            let piece: Vec<u8> = waiting[side].drain(..most).collect();
            pair.input(side, AcceleratorInput::Lan(piece.into()));
        } else if !pair.deliver(side)
            && !pair.deliver(1 - side)
            && waiting.iter().all(VecDeque::is_empty)
        {
            return;
        }
    }
}

/// A session between the hosts, and what they send.
struct SealedSession {
    secret: SessionSecret,
    level: u8,
    client: PduProtector,
    server: PduProtector,
    from_client: Vec<ScriptedPdu>,
    from_server: Vec<ScriptedPdu>,
    /// Stubs in the clear.
    stubs: Vec<u8>,
}

impl SealedSession {
    /// Logs in as anna with this password, at this level.
    fn log_in(password: &str, level: u8) -> Self {
        Self::log_in_to(OTHER, password, level)
    }

    /// Logs in to this interface.
    fn log_in_to(interface: [u8; 16], password: &str, level: u8) -> Self {
        let (mut token, key) = log_in("CORP", "anna", password, CHALLENGE, Some([0x42; 16]));
        let flags = u32::from_le_bytes(token[60..64].try_into().unwrap()) | 0x0008_0000;
        token[60..64].copy_from_slice(&flags.to_le_bytes());
        let secret = SessionSecret::Ntlm(NtlmSecret {
            key: Zeroizing::new(key),
            flags,
            first_sequence: 0,
        });
        let tokens = [&b"NTLMSSP\0\x01\0\0\0"[..], &challenge(CHALLENGE), &token];
        Self::set_up(interface, level, secret, tokens)
    }

    /// Logs in with a ticket.
    fn log_in_by_kerberos(
        interface: [u8; 16],
        tokens: &KerberosTokens,
        signs_headers: bool,
        level: u8,
    ) -> Self {
        let secret = SessionSecret::Kerberos(KerberosSecret {
            messages: tokens.secret.clone().expect("the encryption is one of AES"),
            signs_headers,
        });
        // The client's last token is an AP-REP of its own.
        let tokens = [&tokens.request[..], &tokens.reply, &tokens.reply];
        Self::set_up(interface, level, secret, tokens)
    }

    /// The begin of a session, with the tokens of bind, bind_ack and auth3.
    fn set_up(interface: [u8; 16], level: u8, secret: SessionSecret, tokens: [&[u8]; 3]) -> Self {
        let trailer = trailer(level, 0);
        let [first, answer, last] = tokens;
        let bind = bind(1, &[(0, interface)], Some((trailer, first)));
        let ack = bind_ack(1, "6001", &[0], Some((trailer, answer)));
        let after_bind = bind.len();
        let after_ack = ack.len();
        Self {
            client: secret.protector(MessageOrigin::Client),
            server: secret.protector(MessageOrigin::Server),
            secret,
            level,
            from_client: vec![
                ScriptedPdu {
                    bytes: bind,
                    after: 0,
                },
                ScriptedPdu {
                    bytes: auth3(1, (trailer, last)),
                    after: after_ack,
                },
            ],
            from_server: vec![ScriptedPdu {
                bytes: ack,
                after: after_bind,
            }],
            stubs: Vec::new(),
        }
    }

    fn sent(script: &[ScriptedPdu]) -> Vec<u8> {
        script.iter().flat_map(|pdu| pdu.bytes.clone()).collect()
    }

    fn protect(protector: &mut PduProtector, level: u8, bytes: &[u8]) -> Vec<u8> {
        let pdu = RawPdu::parse(Bytes::copy_from_slice(bytes)).unwrap();
        let mut head = bytes[..pdu.stub().start].to_vec();
        let mut stub = bytes[pdu.stub()].to_vec();
        let padding = stub.len().next_multiple_of(4) - stub.len();
        stub.resize(stub.len() + padding, 0);
        let signature = protector.signature_length(level);
        let length = (head.len() + stub.len() + 8 + signature) as u16;
        head[8..10].copy_from_slice(&length.to_le_bytes());
        head[10] = signature as u8;
        let trailer = trailer(level, padding as u8);
        let opened = OpenedPdu {
            head,
            stub,
            trailer,
        };
        protector
            .seal(&opened)
            .expect("the signature has its length")
    }

    /// Requests without waiting for answers, and their answers.
    fn calls(&mut self, count: u32, length: usize, random: &mut SeededRandom) {
        let waits = Self::sent(&self.from_server).len();
        for call in 0..count {
            let mut stub = vec![0; length + call as usize];
            random.fill(&mut stub);
            self.stubs.extend(&stub);
            let bytes = request(2 + call, 11, &stub);
            self.from_client.push(ScriptedPdu {
                bytes: Self::protect(&mut self.client, self.level, &bytes),
                after: waits,
            });
            random.fill(&mut stub);
            self.stubs.extend(&stub);
            let bytes = response(2 + call, &stub);
            self.from_server.push(ScriptedPdu {
                bytes: Self::protect(&mut self.server, self.level, &bytes),
                after: Self::sent(&self.from_client).len(),
            });
        }
    }
}

fn trailer(level: u8, padding: u8) -> SecurityTrailer {
    SecurityTrailer {
        mechanism: 10,
        level,
        padding,
        context: CONTEXT,
    }
}

fn accounts(text: &str) -> DelegatedKeys {
    DelegatedKeys {
        accounts: Some(Arc::new(DelegatedAccounts::parse(text).unwrap())),
        keytab: None,
    }
}

fn keytab(tokens: &KerberosTokens) -> DelegatedKeys {
    DelegatedKeys {
        accounts: None,
        keytab: Some(tokens.keytab.clone()),
    }
}

/// Contains all of these bytes, in pieces of 32.
fn has_all(whole: &[u8], pieces: &[u8]) -> bool {
    let mut pieces = pieces.chunks_exact(32);
    pieces.all(|piece| whole.windows(32).any(|window| window == piece))
}

#[test]
fn sealed_calls_cross_in_the_clear_and_arrive_identical() {
    for seed in 0..40 {
        let mut random = SeededRandom::from_seed(seed);
        let level = [level::PRIVACY, level::INTEGRITY, level::PACKET][seed as usize % 3];
        let mut session = SealedSession::log_in("secret", level);
        session.calls(6, 700, &mut random);
        session.calls(3, 20, &mut random);
        let wanted = [
            SealedSession::sent(&session.from_client),
            SealedSession::sent(&session.from_server),
        ];
        let mut pair = HalfPair::new(accounts("CORP\\anna:password:secret"), true);
        play(
            &mut pair,
            [session.from_client, session.from_server],
            &mut random,
        );
        assert_eq!(pair.outcome(), None, "seed {seed}");
        assert!(pair.sides[1].to_host == wanted[0], "seed {seed}");
        assert!(pair.sides[0].to_host == wanted[1], "seed {seed}");
        let half = pair.sides[1].half.as_ref().unwrap();
        assert_eq!(half.note().as_deref(), Some("for CORP\\anna"));
        assert_eq!(half.buffered(), 0);
    }
}

#[test]
fn kerberos_calls_cross_in_the_clear_and_arrive() {
    let levels = [level::PRIVACY, level::INTEGRITY, level::PACKET];
    for seed in 0..48 {
        let mut random = SeededRandom::from_seed(seed);
        let encryption = EncryptionType::ALL[seed as usize % 4];
        let tokens = KerberosTokens::new(encryption);
        let level = levels[seed as usize / 4 % 3];
        let signs_headers = seed % 2 == 0;
        let mut session = SealedSession::log_in_by_kerberos(OTHER, &tokens, signs_headers, level);
        session.calls(6, 700, &mut random);
        session.calls(3, 20, &mut random);
        let wanted = [
            SealedSession::sent(&session.from_client),
            SealedSession::sent(&session.from_server),
        ];
        let mut pair = HalfPair::new(keytab(&tokens), true);
        play(
            &mut pair,
            [session.from_client, session.from_server],
            &mut random,
        );
        assert_eq!(pair.outcome(), None, "seed {seed}");
        // The confounders are the same because both ends compute them in the same way.
        assert!(pair.sides[1].to_host == wanted[0], "seed {seed}");
        assert!(pair.sides[0].to_host == wanted[1], "seed {seed}");
        assert!(has_all(&pair.payload, &session.stubs[5_000..5_600]));
        let half = pair.sides[1].half.as_ref().unwrap();
        let note = format!("for {}", tokens.client);
        assert_eq!(half.note().as_deref(), Some(&note[..]));
        assert_eq!(half.buffered(), 0);
    }
}

#[test]
fn kerberos_flows_without_a_key_pass_untouched() {
    let aes = KerberosTokens::new(EncryptionType::Aes256Sha1);
    let other = KerberosTokens::new(EncryptionType::Aes128Sha2);
    let cases = [
        (DelegatedKeys::default(), ReasonCode::NO_KEYTAB),
        (accounts("CORP\\anna:password:x"), ReasonCode::NO_KEYTAB),
        (keytab(&other), ReasonCode::UNKNOWN_TICKET),
    ];
    for (delegated, reason) in cases {
        let mut random = SeededRandom::from_seed(5);
        let mut session = SealedSession::log_in_by_kerberos(OTHER, &aes, true, level::PRIVACY);
        session.calls(5, 900, &mut random);
        let wanted = [
            SealedSession::sent(&session.from_client),
            SealedSession::sent(&session.from_server),
        ];
        let mut pair = HalfPair::new(delegated, true);
        play(
            &mut pair,
            [session.from_client, session.from_server],
            &mut random,
        );
        assert_eq!(pair.outcome(), Some(LettingGo::LetGo { reason }));
        assert!(pair.sides[1].to_host == wanted[0]);
        assert!(pair.sides[0].to_host == wanted[1]);
    }
}

#[test]
fn tokens_with_rc4_are_not_read() {
    let mut set_up = SecuritySetUp::new(keytab(&KerberosTokens::new(EncryptionType::Rc4)));
    let tokens = KerberosTokens::new(EncryptionType::Rc4);
    set_up.client_token(&tokens.request);
    set_up.server_token(&tokens.reply);
    let missing = set_up.candidates().unwrap_err();
    assert_eq!(missing.reason, ReasonCode::MECHANISM);
    assert_eq!(missing.account.as_deref(), Some(&tokens.client[..]));
}

#[test]
fn later_stubs_are_payload_only_where_the_policy_allows() {
    for may_store in [true, false] {
        let mut random = SeededRandom::from_seed(7);
        let mut session = SealedSession::log_in("secret", level::PRIVACY);
        session.calls(1, 640, &mut random);
        let mut later = SealedSession {
            stubs: Vec::new(),
            ..session
        };
        later.calls(4, 640, &mut random);
        let mut pair = HalfPair::new(accounts("CORP\\anna:password:secret"), may_store);
        play(
            &mut pair,
            [later.from_client, later.from_server],
            &mut random,
        );
        let (has, lacks) = match may_store {
            true => (&pair.payload, &pair.control),
            false => (&pair.control, &pair.payload),
        };
        // What the server sends is opened as soon as the first call has proved the key.
        let answer = &later.stubs[640..1_280];
        assert!(has_all(has, answer), "{may_store}");
        assert!(!has_all(lacks, &answer[..32]), "{may_store}");
    }
}

#[test]
fn flows_without_a_key_pass_untouched() {
    let cases = [
        (DelegatedKeys::default(), ReasonCode::ENCRYPTED),
        (
            accounts("CORP\\ben:password:x"),
            ReasonCode::UNKNOWN_ACCOUNT,
        ),
        (accounts("CORP\\anna:password:x"), ReasonCode::WRONG_KEY),
    ];
    for (delegated, reason) in cases {
        for seed in 0..10 {
            let mut random = SeededRandom::from_seed(seed);
            let mut session = SealedSession::log_in("secret", level::PRIVACY);
            session.calls(5, 900, &mut random);
            let wanted = [
                SealedSession::sent(&session.from_client),
                SealedSession::sent(&session.from_server),
            ];
            let mut pair = HalfPair::new(delegated.clone(), true);
            play(
                &mut pair,
                [session.from_client, session.from_server],
                &mut random,
            );
            assert_eq!(pair.outcome(), Some(LettingGo::LetGo { reason }));
            assert!(pair.sides[1].to_host == wanted[0]);
            assert!(pair.sides[0].to_host == wanted[1]);
        }
    }
}

#[test]
fn unprotected_calls_and_other_bytes_pass_untouched() {
    for seed in 0..20 {
        let mut random = SeededRandom::from_seed(seed);
        let mut noise = vec![0; 3_000];
        random.fill(&mut noise);
        let mut client = [bind(1, &[(0, OTHER)], None), request(2, 11, &noise)].concat();
        let mut server = [bind_ack(1, "6001", &[0], None), response(2, &noise)].concat();
        match seed % 4 {
            0 => client.extend(b"GET / HTTP/1.1\r\n\r\n and more than a header has"),
            1 => server.extend(&noise),
            // The representation of a big-endian host.
            2 => client[4] = 0,
            _ => client.extend(&request(3, 11, &noise)[..40]),
        }
        let script = |bytes: &[u8]| {
            vec![ScriptedPdu {
                bytes: bytes.to_vec(),
                after: 0,
            }]
        };
        let mut pair = HalfPair::new(DelegatedKeys::default(), true);
        play(&mut pair, [script(&client), script(&server)], &mut random);
        pair.input(0, AcceleratorInput::LanFinished);
        while pair.deliver(1) {}
        pair.input(1, AcceleratorInput::WanFinished);
        assert!(pair.sides[1].to_host == client, "seed {seed}");
        assert!(pair.sides[0].to_host == server, "seed {seed}");
        assert!(!pair.is_closed);
    }
}

#[test]
fn wrong_signatures_and_replays_close_the_flow() {
    for (seed, is_replayed) in (0..20).map(|seed| (seed, seed % 2 == 0)) {
        let mut random = SeededRandom::from_seed(seed);
        let tokens = KerberosTokens::new(EncryptionType::Aes256Sha1);
        let (mut session, delegated) = match seed < 10 {
            true => (
                SealedSession::log_in("secret", level::PRIVACY),
                accounts("CORP\\anna:password:secret"),
            ),
            false => (
                SealedSession::log_in_by_kerberos(OTHER, &tokens, true, level::PRIVACY),
                keytab(&tokens),
            ),
        };
        session.calls(4, 900, &mut random);
        let side = (seed as usize / 2) % 2;
        let script = match side {
            0 => &mut session.from_client,
            _ => &mut session.from_server,
        };
        let last = script.len() - 1;
        match is_replayed {
            true => script[last].bytes = script[last - 1].bytes.clone(),
            false => script[last].bytes[100] ^= 1,
        }
        let wrong = script[last].bytes.clone();
        let mut pair = HalfPair::new(delegated, true);
        play(
            &mut pair,
            [session.from_client, session.from_server],
            &mut random,
        );
        let reason = ReasonCode::FORGED;
        assert_eq!(pair.outcome(), Some(LettingGo::Close { reason }), "{seed}");
        let received = &pair.sides[1 - side].to_host;
        let is_there = received
            .windows(wrong.len())
            .filter(|window| *window == wrong)
            .count();
        assert!(is_there <= usize::from(is_replayed), "{seed}");
    }
}

#[test]
fn frames_that_lie_close_or_let_go() {
    let mut random = SeededRandom::from_seed(3);
    for _ in 0..2_000 {
        let mut pair = HalfPair::new(accounts("CORP\\anna:password:secret"), true);
        for _ in 0..random.below(6) {
            let side = random.below(2) as usize;
            let mut bytes = vec![0; 1 + random.below(60) as usize];
            random.fill(&mut bytes);
            bytes[0] = random.below(7) as u8;
            let segment = match random.below(3) {
                0 => FlowSegment::payload(bytes.into()),
                _ => FlowSegment::frame(bytes.into()),
            };
            pair.input(side, AcceleratorInput::Wan(segment));
        }
    }
}

#[test]
fn endpoint_mapper_and_mailbox_ports_get_their_halves() {
    use accelerate::WanEnd;
    use accelerate::settings::AcceleratorSettings;
    use accelerate::shared::{HalfContext, StartContext};

    let settings = crate::MapiSettings {
        is_on: true,
        ..crate::MapiSettings::default()
    };
    let mut state = settings.start(StartContext {
        memory_max: 1 << 20,
        random: SeededRandom::from_seed(1),
        key: None,
    });
    let server = |port| SocketAddr::from(([198, 18, 0, 2], port));
    let context = |port| HalfContext {
        flow: 1,
        client: ([198, 18, 0, 1], 50_000).into(),
        server: server(port),
        delegated: DelegatedKeys::default(),
        path_bytes: 0,
        random: SeededRandom::from_seed(2),
    };
    assert!(!state.serves(Time::ZERO, server(6001)));
    let mut near = state.build(WanEnd::Near, context(135));
    let client = bind(1, &[(0, crate::epm::EPT)], None);
    near.handle(Time::ZERO, AcceleratorInput::Lan(client.into()));
    let answer = [
        bind_ack(1, "135", &[0], None),
        response(2, &crate::testing::map_answer(&[(EMSMDB, 6001)])),
    ];
    let answer = FlowSegment::payload(answer.concat().into());
    near.handle(Time::ZERO, AcceleratorInput::Wan(answer));
    assert!(state.serves(Time::ZERO, server(6001)));
    assert!(!state.serves(Time::ZERO, server(6002)));
}

/// A host that speaks whole calls, protected or not.
struct CallingHost {
    splitter: PduSplitter,
    calls: CallGatherer,
    /// Opens what comes and protects what goes.
    protection: Option<(PduProtector, PduProtector, SecurityTrailer)>,
    read: usize,
}

impl CallingHost {
    fn new(protection: Option<(PduProtector, PduProtector, SecurityTrailer)>) -> Self {
        Self {
            splitter: PduSplitter::default(),
            calls: CallGatherer::default(),
            protection,
            read: 0,
        }
    }

    /// Whole calls in what this host has received so far.
    fn receive(&mut self, received: &[u8]) -> Vec<GatheredCall> {
        self.splitter.push(&received[self.read..]);
        self.read = received.len();
        let mut calls = Vec::new();
        while let Some(pdu) = self.splitter.next_pdu().unwrap() {
            if !pdu.header.kind.is_of_call() {
                continue;
            }
            let clear = match &mut self.protection {
                None => pdu,
                Some((opens, _, _)) => {
                    let opened = opens.open(&pdu).expect("the signature is valid");
                    RawPdu::parse(opened.to_bytes().into()).unwrap()
                }
            };
            match self.calls.fragment(clear) {
                GatheredFragment::Whole(call) => calls.push(call),
                GatheredFragment::Partial => {}
                GatheredFragment::Refused(_) => panic!("the fragments of a call are in order"),
            }
        }
        calls
    }

    fn send(&mut self, kind: PduKind, call_id: u32, opnum: u16, stub: &[u8]) -> Vec<u8> {
        let frame = CallFrame {
            kind,
            call_id,
            context_id: 0,
            opnum,
            protection: self
                .protection
                .as_ref()
                .map(|(_, seals, trailer)| CallProtection {
                    trailer: *trailer,
                    signature_length: seals.signature_length(trailer.level),
                }),
            fragment_max: 4_280,
        };
        let mut bytes = Vec::new();
        for fragment in frame.fragments(stub) {
            bytes.extend(match &mut self.protection {
                None => unprotected(fragment),
                Some((_, seals, _)) => seals.seal(&fragment).expect("as long as announced"),
            });
        }
        bytes
    }
}

/// Hands over bytes in pieces and then everything that crosses.
fn exchange(pair: &mut HalfPair, side: usize, bytes: &[u8], random: &mut SeededRandom) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(1 + random.below(5_000) as usize));
        pair.input(side, AcceleratorInput::Lan(Bytes::copy_from_slice(piece)));
        rest = behind;
    }
    while pair.deliver(0) || pair.deliver(1) {}
}

#[test]
fn mailbox_calls_reach_the_server_whole_and_answers_come_back() {
    for seed in 0..12 {
        let mut random = SeededRandom::from_seed(seed);
        let tokens = KerberosTokens::new(EncryptionType::Aes256Sha1);
        let delegated = DelegatedKeys {
            keytab: keytab(&tokens).keytab,
            ..accounts("CORP\\anna:password:secret")
        };
        let mut pair = HalfPair::new(delegated, true);
        let protection = match seed % 3 {
            0 => {
                exchange(&mut pair, 0, &bind(1, &[(0, EMSMDB)], None), &mut random);
                exchange(&mut pair, 1, &bind_ack(1, "6001", &[0], None), &mut random);
                None
            }
            chosen => {
                let session = match chosen {
                    1 => SealedSession::log_in_to(EMSMDB, "secret", level::PRIVACY),
                    _ => SealedSession::log_in_by_kerberos(EMSMDB, &tokens, true, level::PRIVACY),
                };
                exchange(&mut pair, 0, &session.from_client[0].bytes, &mut random);
                exchange(&mut pair, 1, &session.from_server[0].bytes, &mut random);
                exchange(&mut pair, 0, &session.from_client[1].bytes, &mut random);
                Some(session.secret)
            }
        };
        let host = |opens, seals| {
            let protection = protection.as_ref().map(|secret: &SessionSecret| {
                let protector = |origin| secret.protector(origin);
                (
                    protector(opens),
                    protector(seals),
                    trailer(level::PRIVACY, 0),
                )
            });
            CallingHost::new(protection)
        };
        let mut client = host(MessageOrigin::Server, MessageOrigin::Client);
        let mut server = host(MessageOrigin::Client, MessageOrigin::Server);
        for call in 0..20u32 {
            let mut stub = vec![0; random.below(30_000) as usize];
            random.fill(&mut stub);
            // Not the mailbox's own calls, which the machine reads, but others of its interface.
            let opnum = [4, 6, 11, 14][call as usize % 4];
            let bytes = client.send(PduKind::Request, 10 + call, opnum, &stub);
            exchange(&mut pair, 0, &bytes, &mut random);
            let [asked] = &server.receive(&pair.sides[1].to_host)[..] else {
                panic!("one call");
            };
            assert_eq!(asked.opnum, Some(opnum));
            assert!(asked.stub == stub, "call {call} of seed {seed}");
            random.fill(&mut stub);
            let answer = server.send(PduKind::Response, asked.call_id, 0, &stub);
            exchange(&mut pair, 1, &answer, &mut random);
            let [answered] = &client.receive(&pair.sides[0].to_host)[..] else {
                panic!("one answer");
            };
            assert_eq!(answered.call_id, 10 + call);
            assert!(answered.stub == stub, "answer {call} of seed {seed}");
        }
        assert_eq!(pair.outcome(), None);
        // A fault is a fault, whoever writes it.
        let bytes = client.send(PduKind::Request, 99, 6, b"last");
        exchange(&mut pair, 0, &bytes, &mut random);
        let call_id = server.receive(&pair.sides[1].to_host)[0].call_id;
        let fault = server.send(PduKind::Fault, call_id, 0, &[5, 0, 0, 0, 0, 0, 0, 0]);
        exchange(&mut pair, 1, &fault, &mut random);
        let faults = client.receive(&pair.sides[0].to_host);
        assert_eq!(faults[0].call_id, 99);
        assert_eq!(faults[0].stub[..4], [5, 0, 0, 0]);
    }
}

#[test]
fn a_far_node_that_is_switched_off_lets_go() {
    let mut far = MapiFarHalf::switched_off(place());
    far.handle(Time::ZERO, AcceleratorInput::Start);
    let outputs: Vec<_> = std::iter::from_fn(|| far.poll_output()).collect();
    let reason = ReasonCode::POLICY;
    let let_go = AcceleratorOutput::LettingGo(LettingGo::LetGo { reason });
    assert_eq!(outputs, [AcceleratorOutput::OpenServer, let_go]);
}

#[test]
fn good_inputs_of_the_fuzz_target_are_read() {
    for (name, bytes) in crate::testing::conversation() {
        crate::testing::structures(&bytes);
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 0x41;
            crate::testing::structures(&altered);
            crate::testing::structures(&bytes[..at]);
        }
        assert!(!bytes.is_empty(), "{name}");
    }
}
