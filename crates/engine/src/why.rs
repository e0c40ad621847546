//! Describes what was done with a flow: the texts of `why`.

use std::borrow::Cow;

use accelerate::{ReasonSource, WanEnd};
use reduce::Dictionary;
use tunnel::{ConnectFailure, ResetReason};
use vocab::Time;

use crate::accelerators::ACCELERATORS;
use crate::bounds::OpenRefusal;
use crate::direct::DirectConnection;
use crate::flow::{ClientState, Flow};
use crate::peer::PeerState;
use crate::report::{DictionaryStatus, FlowExplanation, FlowReport, StageReport};

/// Describes why a server's connection could not be opened.
pub(crate) fn failure_text(failure: ConnectFailure) -> &'static str {
    match failure {
        ConnectFailure::Refused => "the server refused the connection",
        ConnectFailure::TimedOut => "the server did not answer",
        ConnectFailure::Unreachable => "there is no route to the server",
        ConnectFailure::NotPermitted => {
            "the far node may not connect to the server: its serve list excludes the server, or it may not \
             use the client's address"
        }
        ConnectFailure::Exhausted => "the far node has reached a limit",
        ConnectFailure::AnswersElsewhere => {
            "asymmetric route: the server answers connections from the far node's own address, but its \
             answers to the client's address take another route"
        }
        ConnectFailure::Filtered => {
            "the packet filter of the far node's machine drops the connection (`trunkline node check` on \
             that machine prints the commands that allow it)"
        }
        ConnectFailure::Other => "the far node could not connect to the server",
    }
}

/// The action that would let the server's connection be opened; `None` where the reason already
/// says it.
pub(crate) fn failure_remedy(failure: ConnectFailure) -> Option<&'static str> {
    (failure == ConnectFailure::AnswersElsewhere).then_some(
        "route the server's answers to the client through the far node, or let the client use the proxy of \
         the near node ([proxy]), for which the far node connects from its own address",
    )
}

/// Describes why the peer could not open a server's connection. The text does not reveal the peer's
/// policy, so that its limits cannot be found by trying.
pub(crate) fn answer_text(failure: ConnectFailure) -> &'static str {
    match failure {
        ConnectFailure::Unreachable => {
            "the far node cannot reach the server, or its policy (serve, and the prefixes of [[peer]]) does \
             not allow the connection; the log of the far node and `node why` on it name the reason"
        }
        ConnectFailure::Refused
        | ConnectFailure::TimedOut
        | ConnectFailure::NotPermitted
        | ConnectFailure::Exhausted
        | ConnectFailure::AnswersElsewhere
        | ConnectFailure::Filtered
        | ConnectFailure::Other => failure_text(failure),
    }
}

/// The text for a flow that was reset because its peer fell silent before it answered.
pub(crate) const UNANSWERED: &str =
    "the peer fell silent before it confirmed the connection to the server";

/// Describes why the peer, or the session, reset a flow.
pub(crate) fn reset_text(reason: ResetReason) -> &'static str {
    match reason {
        ResetReason::HostReset => "a host on the peer's LAN side reset the connection",
        ResetReason::HostLost => "the peer could not reach its host any more",
        ResetReason::Accelerator => {
            "the peer's accelerator could not continue without risk to the data"
        }
        ResetReason::Reduction => "the data of the flow could not be restored",
        ResetReason::Stopping => "the peer stopped",
        ResetReason::Limit => "the peer reached one of its limits",
        ResetReason::Policy => "the peer's policy forbids the flow",
        ResetReason::PeerLost => {
            "the peer's process ended (its host closed the link, and no new link followed), or nothing was \
             heard from the peer for too long"
        }
        ResetReason::PeerRestarted => "the peer was restarted",
        ResetReason::PeerRemoved => "the peer has removed this node from its peers",
        ResetReason::Gone => "the peer had already forgotten the flow",
        ResetReason::Unknown(_) => "the peer gave a reason that this release does not know",
    }
}

pub(crate) fn dictionary_status(dictionary: &Dictionary) -> DictionaryStatus {
    let statistics = dictionary.statistics();
    DictionaryStatus {
        ready: dictionary.is_ready(),
        chunks: statistics.chunks,
        memory_bytes: statistics.memory_bytes,
        disk_bytes: statistics.disk_bytes,
        disk_waiting_bytes: statistics.waiting_bytes,
        content_requests_total: statistics.content_requests,
        link_requests_total: statistics.link_requests,
        unwritten_chunks_total: statistics.unwritten_chunks,
        damaged_records_total: statistics.damaged_records,
        disk_faults_total: statistics.disk_faults,
    }
}

pub(crate) fn flow_report(now: Time, flow: &Flow, peer: &str, state: &str) -> FlowReport {
    FlowReport {
        flow: flow.number,
        state: state.to_owned(),
        peer: peer.to_owned(),
        half: match flow.half {
            WanEnd::Near => "near",
            WanEnd::Far => "far",
        }
        .to_owned(),
        via: flow.via,
        client: flow.client.to_string(),
        server: flow.server.to_string(),
        protocol: flow.protocol.to_string(),
        age_s: now.since(flow.started).as_secs_f64(),
        sent_lan_bytes: flow.sent_lan_bytes,
        sent_wan_bytes: flow.sent_wan_bytes,
        received_lan_bytes: flow.received_lan_bytes,
        received_wan_bytes: flow.received_wan_bytes,
        accelerated: accelerated(flow),
    }
}

/// Returns the count of requests that the flow's accelerator has answered, if there are any.
fn answered_clause(flow: &Flow) -> Option<String> {
    match flow.answered_here() {
        0 => None,
        1 => Some("1 request answered on this side of the WAN".to_owned()),
        count => Some(format!("{count} requests answered on this side of the WAN")),
    }
}

/// Returns the results of a flow's accelerator, in a clause.
fn accelerated(flow: &Flow) -> Option<String> {
    let answered = answered_clause(flow);
    let clauses: Vec<String> = answered.into_iter().chain(flow.note()).collect();
    (!clauses.is_empty()).then(|| clauses.join("; "))
}

pub(crate) fn direct_report(now: Time, direct: &DirectConnection, state: &str) -> FlowReport {
    FlowReport {
        flow: direct.number,
        state: state.to_owned(),
        peer: "direct".to_owned(),
        half: "near".to_owned(),
        via: Some(direct.via),
        client: direct.client.to_string(),
        server: direct.server.to_string(),
        protocol: accelerate::detect::by_port(ACCELERATORS, direct.server.port()).to_string(),
        age_s: now.since(direct.started).as_secs_f64(),
        sent_lan_bytes: direct.bytes_up,
        sent_wan_bytes: direct.bytes_up,
        received_lan_bytes: direct.bytes_down,
        received_wan_bytes: direct.bytes_down,
        accelerated: None,
    }
}

pub(crate) fn explain_direct(now: Time, direct: &DirectConnection, state: &str) -> FlowExplanation {
    FlowExplanation {
        flow: direct_report(now, direct, state),
        stages: vec![StageReport {
            stage: "intercept",
            did: format!(
                "accepted ({}), and connected to the server without a peer",
                direct.via
            ),
            saved_bytes: Some(0),
            why_not: Some(direct.reason.text().to_owned()),
            remedy: Some(direct.reason.remedy().to_owned()),
        }],
    }
}

pub(crate) fn explain(now: Time, flow: &Flow, peer: &PeerState, state: &str) -> FlowExplanation {
    FlowExplanation {
        flow: flow_report(now, flow, &peer.config.name, state),
        stages: vec![
            intercept(flow, state),
            classify(flow),
            accelerate(flow, &peer.config.name),
            reduce(flow, state),
            tunnel(flow, peer),
        ],
    }
}

fn intercept(flow: &Flow, state: &str) -> StageReport {
    let did = match flow.via {
        Some(via) if flow.client_state == ClientState::Accepted => {
            format!("accepted before the server answered ({via})")
        }
        Some(via) if flow.is_connected() => format!("accepted after the server answered ({via})"),
        Some(via) => format!("not accepted yet, because the server has not answered ({via})"),
        None if !flow.is_connected() => match flow.refusal {
            Some(_) => "opened no connection for the peer".to_owned(),
            None => "could not open the server's connection for the peer".to_owned(),
        },
        None => "opened the server's connection for the peer".to_owned(),
    };
    let kept = match flow.keep_client_address {
        _ if flow.unopened().is_some() && state == "open" => {
            "the peer has not been asked to connect yet"
        }
        _ if flow.unopened().is_some() && state == "closed" => {
            "this node answered everything, so no server saw the flow"
        }
        _ if flow.unopened().is_some() => "the peer was never asked to connect",
        _ if !flow.is_connected() => "no server saw the flow",
        true => "the server sees the client's own address",
        false => "the server sees the far node's address",
    };
    let failed = flow.connect_failure.map(match flow.half {
        WanEnd::Near => answer_text,
        WanEnd::Far => failure_text,
    });
    let why_not = flow.refusal.map(OpenRefusal::text).or(failed);
    let further = match flow.further_connections() {
        0 => String::new(),
        further => format!("; {further} further connections to the server"),
    };
    StageReport {
        stage: "intercept",
        did: format!("{did}; {kept}{further}"),
        saved_bytes: None,
        why_not: why_not.map(str::to_owned),
        remedy: flow
            .connect_failure
            .and_then(failure_remedy)
            .map(str::to_owned),
    }
}

fn classify(flow: &Flow) -> StageReport {
    StageReport {
        stage: "classify",
        did: format!("{} (found by the port and the first bytes)", flow.protocol),
        saved_bytes: None,
        why_not: None,
        remedy: None,
    }
}

fn accelerate(flow: &Flow, peer: &str) -> StageReport {
    let (why_not, remedy) = match flow.reason_given() {
        _ if flow.carry_only => (
            Some("carry_only_ports lists this port, so the node only carries its bytes".to_owned()),
            Some("remove the port from carry_only_ports in [policy]".to_owned()),
        ),
        Some(given) => {
            let source = match given.by == flow.half {
                true => ReasonSource::ThisNode,
                false => ReasonSource::Peer(peer),
            };
            let explanation = given.reason.explanation(source);
            let why_not = match flow.note() {
                Some(note) => format!("{} ({note})", explanation.text),
                None => explanation.text.into_owned(),
            };
            (Some(why_not), explanation.remedy.map(Cow::into_owned))
        }
        None => (None, None),
    };
    let name = flow.accelerator.name;
    let mut did = name.to_owned();
    let mut add = |what: &str| {
        let joint = if did == name { ": " } else { "; " };
        did.push_str(joint);
        did.push_str(what);
    };
    if let Some(answered) = answered_clause(flow) {
        add(&answered);
    }
    if let (None, Some(note)) = (&why_not, flow.note()) {
        add(&note);
    }
    StageReport {
        stage: "accelerate",
        did,
        saved_bytes: None,
        why_not,
        remedy,
    }
}

/// The bytes of a flow below which its headers outweigh the savings of reduction.
const WORTH_REDUCING: u64 = 4 * 1024;

/// Reports the direction that this node encodes in full. Only the sizes of the other direction are
/// known here, and the peer's `why` explains the rest.
fn reduce(flow: &Flow, state: &str) -> StageReport {
    let reduction = flow.reduction();
    let lan = flow.sent_lan_bytes + flow.received_lan_bytes;
    let wan = flow.sent_wan_bytes + flow.received_wan_bytes;
    let ended_well = matches!(state, "open" | "closed");
    let (why_not, remedy) = if wan < lan || lan == 0 || !ended_well {
        (None, None)
    } else if lan < WORTH_REDUCING {
        (
            Some("the flow has too few bytes for reduction".to_owned()),
            None,
        )
    } else if flow.carry_only {
        (
            Some("carry_only_ports lists this port, so the node only carries its bytes".to_owned()),
            Some("remove the port from carry_only_ports in [policy]".to_owned()),
        )
    } else if !flow.may_store {
        (
            Some("the policy (never_store, never_store_ports) does not allow this content to be stored".to_owned()),
            Some("remove the address or the port from never_store or never_store_ports in [policy]".to_owned()),
        )
    } else if flow.protocol.is_encrypted {
        (
            Some("the hosts encrypt the content, and encrypted content never repeats".to_owned()),
            None,
        )
    } else if reduction.incompressible_bytes * 2 > flow.sent_lan_bytes
        && flow.sent_lan_bytes >= flow.received_lan_bytes
    {
        (
            Some("the content is incompressible and is not in the dictionary".to_owned()),
            Some("no action is needed: the dictionary has the content now, so a repetition is reduced".to_owned()),
        )
    } else {
        (
            Some("the content is not in the dictionary, and compression saves nothing".to_owned()),
            Some("no action is needed: the dictionary has the payload now, so a repetition is reduced".to_owned()),
        )
    };
    StageReport {
        stage: "reduce",
        did: format!(
            "sent {} as {} B ({} B by reference, {} B incompressible), received {} as {} B; {} repairs requested",
            flow.sent_lan_bytes,
            flow.sent_wan_bytes,
            reduction.referenced_bytes,
            reduction.incompressible_bytes,
            flow.received_lan_bytes,
            flow.received_wan_bytes,
            flow.repairs_asked,
        ),
        saved_bytes: Some(lan as i64 - wan as i64),
        why_not,
        remedy,
    }
}

fn tunnel(flow: &Flow, peer: &PeerState) -> StageReport {
    if flow.unopened().is_some() {
        return StageReport {
            stage: "tunnel",
            did: format!("carried no bytes of the flow to {}", peer.config.name),
            saved_bytes: None,
            why_not: None,
            remedy: None,
        };
    }
    let statistics = peer.session.statistics();
    let round_trip = match statistics.round_trip_latest {
        Some(span) => vocab::format_duration(span),
        None => "not measured yet".to_owned(),
    };
    let fallback = peer.fallback();
    let carries = match fallback {
        None => "sealed packets over UDP",
        Some(_) => "TLS 1.3 over TCP",
    };
    StageReport {
        stage: "tunnel",
        did: format!(
            "{carries} to {}; round trip {round_trip}; {} B retransmitted, {} link changes",
            peer.config.name, statistics.retransmitted_bytes, statistics.link_changes
        ),
        saved_bytes: None,
        why_not: fallback.map(|fallback| fallback.text().to_owned()),
        remedy: fallback.map(|fallback| fallback.remedy().to_owned()),
    }
}
