//! Tests of mail clients through a pair of nodes, with the lab's mailbox.

use bench::mapi::{self, MailAction, MapiCellResult};

use crate::setting::{environment, mailbox_python, turn};

/// Every result of these actions, by both clients with and without protection.
fn exchange(actions: &[MailAction]) -> Option<Vec<MapiCellResult>> {
    let Some(python) = mailbox_python() else {
        eprintln!("not run: no Python with impacket (scripts/install.sh test)");
        return None;
    };
    let results = mapi::exchange(&environment(), &python, actions);
    Some(results.expect("every client carries out its actions"))
}

fn all_are_accelerated(results: &[MapiCellResult]) {
    for result in results {
        let name = result.cell.name();
        assert_eq!(result.identical, Some(true), "{name}");
        assert!(result.bytes > 0 && result.is_complete, "{name}");
        let why = result.accelerate.as_ref().expect("nodes ran");
        assert_eq!(why.did, "mapi", "{name}: {why:?}");
        assert_eq!(why.why_not, None, "{name}: {why:?}");
        assert!(why.answered > 0, "{name}: {why:?}");
    }
}

#[test]
fn mail_clients_are_accelerated_with_and_without_protection() {
    let Some(_turn) = turn("mail clients", &[]) else {
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
fn saved_messages_outlive_a_killed_node() {
    let Some(_turn) = turn("mail through killed nodes", &[]) else {
        return;
    };
    let Some(python) = mailbox_python() else {
        eprintln!("not run: no Python with impacket (scripts/install.sh test)");
        return;
    };
    let results = mapi::interrupted_sends(&environment(), &python).expect("the clients run");
    assert_eq!(results.len(), 4);
    for result in results {
        assert!(result.is_cut && !result.is_saved_when_cut, "{result:?}");
        assert!(result.is_kept && result.is_saved_again, "{result:?}");
    }
}

#[test]
#[ignore = "takes a minute"]
fn mail_clients_are_accelerated_long_profile() {
    let Some(_turn) = turn("mail clients, long profile", &[]) else {
        return;
    };
    if let Some(results) = exchange(&MailAction::ALL) {
        assert_eq!(results.len(), 20);
        all_are_accelerated(&results);
    }
}
