//! Tests of mail clients through a pair of nodes, with the lab's mailbox.

use std::path::PathBuf;

use bench::mapi::{self, HttpMailPort, MailAction, MailClient, MapiCellResult};
use host::command;
use lab::servers::ServerKind;

use crate::setting::{environment, mailbox_python, shared_turn};

/// The Python with impacket, or a remark that it is missing.
fn required_python() -> Option<PathBuf> {
    let python = mailbox_python();
    if python.is_none() {
        eprintln!("not run: no Python with impacket (scripts/install.sh test)");
    }
    python
}

/// Every result of these actions, by both clients with and without protection.
fn exchange(actions: &[MailAction]) -> Option<Vec<MapiCellResult>> {
    let python = required_python()?;
    let results = mapi::exchange(&environment(), &python, actions);
    Some(results.expect("every client carries out its actions"))
}

fn all_are_accelerated(results: &[MapiCellResult]) {
    all_are_accelerated_by("mapi", results);
}

/// Asserts that every result is identical and accelerated, on flows of this accelerator.
fn all_are_accelerated_by(owner: &str, results: &[MapiCellResult]) {
    for result in results {
        let name = result.cell.name();
        assert_eq!(result.identical, Some(true), "{name}");
        assert!(result.bytes > 0 && result.is_complete, "{name}");
        let why = result.accelerate.as_ref().expect("nodes ran");
        assert_eq!(why.did, owner, "{name}: {why:?}");
        assert_eq!(why.why_not, None, "{name}: {why:?}");
        assert!(why.answered > 0, "{name}: {why:?}");
    }
}

/// Calls of a session that cross the link.
fn forwarded_calls(result: &MapiCellResult) -> u64 {
    let why = result.accelerate.as_ref().expect("nodes ran");
    result.all_calls - why.answered
}

#[test]
fn mail_clients_are_accelerated_with_and_without_protection() {
    let Some(_turn) = shared_turn("mail clients", &[]) else {
        return;
    };
    let actions = [
        MailAction::SaveAttachment,
        MailAction::SendAttachment,
        MailAction::List,
    ];
    if let Some(results) = exchange(&actions) {
        assert_eq!(results.len(), 12);
        all_are_accelerated(&results);
    }
}

#[test]
fn mail_client_over_http_is_accelerated() {
    let Some(_turn) = shared_turn("mail client over HTTP", &[]) else {
        return;
    };
    let Some(python) = required_python() else {
        return;
    };
    let exchange = |port| {
        let results = mapi::exchange_by_http(&environment(), &python, port, &MailAction::ALL);
        let results = results.expect("the client carries out its actions");
        assert_eq!(results.len(), MailAction::ALL.len());
        results
    };
    let results = exchange(HttpMailPort::Own);
    all_are_accelerated(&results);
    for result in results.iter().filter(|of| of.cell.action.is_bulk()) {
        let why = result.accelerate.as_ref().expect("nodes ran");
        // All calls of a transfer but some at its begin and its end are answered beside the client.
        assert!(
            why.answered + 8 >= result.calls,
            "{why:?} of {}",
            result.calls
        );
    }
    // On ports of the accelerator of HTTP, in clear and inside TLS, no call more crosses the link.
    for port in [HttpMailPort::Web, HttpMailPort::Tls] {
        let carried = exchange(port);
        all_are_accelerated_by("http", &carried);
        for (carried, own) in carried.iter().zip(&results) {
            let name = carried.cell.name();
            let (through, plain) = (forwarded_calls(carried), forwarded_calls(own));
            assert!(through <= plain, "{port:?}, {name}: {through} > {plain}");
        }
    }
}

#[test]
#[ignore = "takes a minute"]
fn mail_by_ipv6_survives_packet_loss() {
    let Some(_turn) = shared_turn("mail by IPv6 with loss", &[]) else {
        return;
    };
    let Some(python) = required_python() else {
        return;
    };
    let results = mapi::exchange_by_ipv6_with_loss(&environment(), &python);
    let results = results.expect("every client carries out its actions");
    assert_eq!(results.len(), 4);
    all_are_accelerated(&results);
}

#[test]
fn mail_actions_need_few_round_trips() {
    let Some(_turn) = shared_turn("round trips of mail clients", &[]) else {
        return;
    };
    let actions = [
        MailAction::List,
        MailAction::List,
        MailAction::Open,
        MailAction::Open,
    ];
    let Some(results) = exchange(&actions) else {
        return;
    };
    all_are_accelerated(&results);
    for actions in results.chunks(actions.len()) {
        let [first_list, list, _, open] = actions else {
            panic!("four actions of each client");
        };
        let name = list.cell.name();
        // The nodes answer no call of a log-on, so what they answer is part of the list.
        for list in [first_list, list] {
            let why = list.accelerate.as_ref().expect("nodes ran");
            assert!(list.calls - why.answered <= 3, "{name}: {list:?}");
        }
        // The client lists the folder before it opens a message.
        let opening = forwarded_calls(open) - forwarded_calls(list);
        assert!(opening <= 2, "{name}: {opening} round trips");
    }
}

#[test]
#[ignore = "takes a minute"]
fn known_attachments_cost_two_percent_of_their_bytes() {
    let Some(_turn) = shared_turn("attachments that are known", &[ServerKind::Smb]) else {
        return;
    };
    let Some(python) = required_python() else {
        return;
    };
    let results = mapi::known_attachments(&environment(), &python).expect("the clients run");
    assert_eq!(results.len(), 12);
    all_are_accelerated(&results);
    for results in results.chunks(3) {
        let [from_share, from_client, list] = results else {
            panic!("three actions of each client");
        };
        for save in [from_share, from_client] {
            // The client lists the folder before it saves.
            let own = save.wan_bytes - list.wan_bytes;
            let share = own as f64 / save.bytes as f64;
            assert!(share <= 0.02, "{}: {share:.4}", save.cell.name());
        }
    }
}

#[test]
#[ignore = "takes two minutes"]
fn saved_messages_outlive_a_killed_node() {
    let Some(_turn) = shared_turn("mail through killed nodes", &[]) else {
        return;
    };
    let Some(python) = required_python() else {
        return;
    };
    let [xp, later] = MailClient::ALL;
    let clients = [xp, later, MailClient::Outlook2013];
    let results = mapi::interrupted_sends(&environment(), &python, &clients);
    let results = results.expect("the clients run");
    assert_eq!(results.len(), 6);
    for result in results {
        assert!(result.is_cut && !result.is_saved_when_cut, "{result:?}");
        assert!(result.is_kept && result.is_saved_again, "{result:?}");
    }
}

#[test]
fn kerberos_mail_sessions_are_accelerated_with_a_keytab() {
    let Some(_turn) = shared_turn("mail clients by Kerberos", &[]) else {
        return;
    };
    if command::find("krb5kdc").is_none() {
        eprintln!("not run: krb5kdc is missing (apt-get install krb5-kdc)");
        return;
    }
    let Some(python) = required_python() else {
        return;
    };
    let actions = [
        MailAction::SaveAttachment,
        MailAction::SendAttachment,
        MailAction::List,
    ];
    let results = mapi::exchange_by_kerberos(&environment(), &python, &actions);
    let results = results.expect("every client with a ticket carries out its actions");
    assert_eq!(results.with_keytab.len(), 6);
    all_are_accelerated(&results.with_keytab);

    let without = &results.without_keytab;
    assert_eq!(without.identical, Some(true));
    let why = without.accelerate.as_ref().expect("nodes ran");
    assert_eq!(why.answered, 0, "{why:?}");
    let why_not = why.why_not.as_deref().expect("nothing was accelerated");
    assert!(why_not.contains("has no keytab"), "{why_not}");
    let remedy = why.remedy.as_deref().expect("something would help");
    assert!(remedy.contains("keytab = ") && remedy.contains("[credentials]"));

    assert_eq!(results.expired_through, results.expired_direct);
    let error = &results.expired_direct;
    assert!(error.contains("DCERPCException"), "{error}");
}

#[test]
#[ignore = "takes two minutes"]
fn ticket_that_expires_in_transfer_changes_nothing() {
    let Some(_turn) = shared_turn("tickets that expire", &[]) else {
        return;
    };
    if command::find("krb5kdc").is_none() {
        eprintln!("not run: krb5kdc is missing (apt-get install krb5-kdc)");
        return;
    }
    let Some(python) = required_python() else {
        return;
    };
    let outcomes = mapi::tickets_that_expire(&environment(), &python).expect("the lab comes up");
    for [through, direct] in &outcomes.outlived {
        assert!(direct.is_ok(), "{direct:?}");
        assert_eq!(through, direct);
    }
    for outcome in &outcomes.refused {
        let error = outcome.as_ref().expect_err("the server refuses the call");
        assert!(error.contains("fault 0x5"), "{error}");
    }
}

#[test]
#[ignore = "takes a minute"]
fn mail_clients_are_accelerated_long_profile() {
    let Some(_turn) = shared_turn("mail clients, long profile", &[]) else {
        return;
    };
    if let Some(results) = exchange(&MailAction::ALL) {
        assert_eq!(results.len(), 20);
        all_are_accelerated(&results);
    }
}
