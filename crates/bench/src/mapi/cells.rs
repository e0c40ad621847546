//! Cells of the benchmark: a client and its action, a link, a protection, and the modes around it.

use serde::Serialize;

use crate::lines::LinkKind;
use crate::references::DelayedCell;

/// One figure of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapiCell {
    /// The client.
    pub client: MailClient,
    /// Its action.
    pub action: MailAction,
    /// The line.
    pub link: LinkKind,
    /// Delay each way, in milliseconds.
    pub one_way_delay_ms: u32,
    /// Protection of the session.
    pub protection: MailProtection,
    /// Acceleration, by the nodes or by the client.
    pub mode: MailMode,
    /// State of the dictionaries.
    pub state: ContentState,
}

/// A client of the lab's mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailClient {
    /// EcDoRpc.
    OutlookXp,
    /// EcDoRpcExt2.
    Outlook2003,
    /// MAPI over HTTP. The bench has no cells with it.
    Outlook2013,
}

/// An action of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailAction {
    /// Reads an attachment.
    SaveAttachment,
    /// Sends a message with an attachment.
    SendAttachment,
    /// Opens a message with an attachment.
    Open,
    /// Lists a folder of 500 messages.
    List,
    /// Synchronises a folder of 200 messages.
    Synchronise,
}

/// Protection of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailProtection {
    /// No protection.
    None,
    /// NTLM, level PKT_PRIVACY.
    NtlmPrivacy,
    /// Kerberos in SPNEGO, level PKT_PRIVACY.
    KerberosPrivacy,
}

/// Acceleration, by the nodes or by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailMode {
    /// No node runs.
    Baseline,
    /// Both nodes, with MAPI switched off: transport and reduction.
    Transport,
    /// Both nodes, with MAPI switched on, and with the account's key.
    Application,
    /// No node runs; the client compresses and chains its calls.
    Exchange,
}

/// State of the dictionaries before an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentState {
    /// The content is unknown.
    First,
    /// The other client has saved the same attachment before.
    Again,
}

/// The published report's delays, each way, in milliseconds.
pub(super) const DELAYS_MS: [u32; 4] = [0, 30, 100, 250];

/// Delay of the cells that a default run measures at one delay only.
const DEFAULT_DELAY_MS: u32 = 100;

impl MailClient {
    /// The clients of the bench's cells.
    pub const ALL: [Self; 2] = [Self::OutlookXp, Self::Outlook2003];

    /// Name in results, and the program's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutlookXp => "outlook-xp",
            Self::Outlook2003 => "outlook-2003",
            Self::Outlook2013 => "outlook-2013",
        }
    }

    /// The client of the other generation.
    pub(super) const fn other(self) -> Self {
        match self {
            Self::OutlookXp => Self::Outlook2003,
            Self::Outlook2003 | Self::Outlook2013 => Self::OutlookXp,
        }
    }
}

impl MailAction {
    /// All actions.
    pub const ALL: [Self; 5] = [
        Self::SaveAttachment,
        Self::SendAttachment,
        Self::Open,
        Self::List,
        Self::Synchronise,
    ];

    /// Name in results, and the program's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SaveAttachment => "save-attachment",
            Self::SendAttachment => "send-attachment",
            Self::Open => "open",
            Self::List => "list",
            Self::Synchronise => "synchronise",
        }
    }

    /// Tells whether its figure is a rate over a transfer as long as the link's span.
    #[must_use]
    pub const fn is_bulk(self) -> bool {
        matches!(self, Self::SaveAttachment | Self::SendAttachment)
    }
}

impl MailProtection {
    /// All protections.
    pub const ALL: [Self; 3] = [Self::None, Self::NtlmPrivacy, Self::KerberosPrivacy];

    /// Name in results, and the program's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::NtlmPrivacy => "ntlm-privacy",
            Self::KerberosPrivacy => "kerberos-privacy",
        }
    }
}

impl MailMode {
    /// All modes.
    pub const ALL: [Self; 4] = [
        Self::Baseline,
        Self::Transport,
        Self::Application,
        Self::Exchange,
    ];

    /// Name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Transport => "transport",
            Self::Application => "application",
            Self::Exchange => "exchange",
        }
    }

    /// Tells whether nodes run.
    #[must_use]
    pub const fn has_nodes(self) -> bool {
        matches!(self, Self::Transport | Self::Application)
    }
}

impl ContentState {
    /// Name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Again => "again",
        }
    }
}

impl MapiCell {
    /// Cells of a run without options.
    #[must_use]
    pub fn of_default() -> Vec<Self> {
        Self::every().into_iter().filter(Self::is_default).collect()
    }

    fn is_default(&self) -> bool {
        let is_delay = self.one_way_delay_ms == DEFAULT_DELAY_MS;
        let is_there = self.link == LinkKind::Oc1 && is_delay;
        match (self.action.is_bulk(), self.mode, self.state) {
            (true, MailMode::Application, ContentState::First) => true,
            (true, MailMode::Baseline, ContentState::First) => self.one_way_delay_ms == 0,
            // Its bytes on the link are what counts, and T1 takes little processor time.
            (true, MailMode::Application, ContentState::Again) => {
                self.link == LinkKind::T1 && is_delay
            }
            (true, _, _) => false,
            (false, MailMode::Baseline | MailMode::Application, _) => is_there,
            (false, MailMode::Transport | MailMode::Exchange, _) => false,
        }
    }

    /// Every cell.
    #[must_use]
    pub fn every() -> Vec<Self> {
        let mut cells = Vec::new();
        for link in LinkKind::ALL {
            for one_way_delay_ms in DELAYS_MS {
                for mode in MailMode::ALL {
                    for action in MailAction::ALL {
                        for client in MailClient::ALL {
                            for protection in MailProtection::ALL {
                                for state in [ContentState::First, ContentState::Again] {
                                    cells.push(Self {
                                        client,
                                        action,
                                        link,
                                        one_way_delay_ms,
                                        protection,
                                        mode,
                                        state,
                                    });
                                }
                            }
                        }
                    }
                }
            }
        }
        cells.retain(Self::exists);
        cells
    }

    /// Tells whether it is distinct from all other cells: only outlook-2003 has an optimisation of
    /// its own, and only nodes know content again. Kerberos differs from NTLM in the log-on and in
    /// the cost of its tokens, which four cells show.
    fn exists(&self) -> bool {
        let is_again = self.state == ContentState::Again;
        let can_know =
            self.mode == MailMode::Application && self.action == MailAction::SaveAttachment;
        let is_shown = !self.is_by_kerberos()
            || self.action.is_bulk()
                && self.client == MailClient::Outlook2003
                && self.mode == MailMode::Application
                && self.one_way_delay_ms == DEFAULT_DELAY_MS
                && !is_again;
        (self.mode != MailMode::Exchange || self.client == MailClient::Outlook2003)
            && (!is_again || can_know)
            && is_shown
    }

    /// A name for a person and for `--cells`.
    #[must_use]
    pub fn name(&self) -> String {
        format!(
            "{}/{}/{}/{}ms/{}/{}/{}",
            self.client.name(),
            self.action.name(),
            self.link.name(),
            self.one_way_delay_ms,
            self.protection.name(),
            self.mode.name(),
            self.state.name()
        )
    }

    /// Tells whether a word of `--cells` selects it: its name must contain all parts of the word
    /// between `+`.
    #[must_use]
    pub fn is_chosen_by(&self, word: &str) -> bool {
        let name = format!("{}/", self.name());
        word.split('+').all(|part| name.contains(part))
    }

    /// Tells whether its client logs in with a ticket.
    #[must_use]
    pub(super) fn is_by_kerberos(&self) -> bool {
        self.protection == MailProtection::KerberosPrivacy
    }

    /// Tells whether it needs so little processor time that other cells may run beside it.
    #[must_use]
    pub(super) fn is_light(&self) -> bool {
        self.link == LinkKind::T1
            || (self.one_way_delay_ms >= 30 && self.mode != MailMode::Application)
    }
}

impl Serialize for MapiCell {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Cell", 7)?;
        fields.serialize_field("client", self.client.name())?;
        fields.serialize_field("action", self.action.name())?;
        fields.serialize_field("link", self.link.name())?;
        fields.serialize_field("one_way_delay_ms", &self.one_way_delay_ms)?;
        fields.serialize_field("protection", self.protection.name())?;
        fields.serialize_field("mode", self.mode.name())?;
        fields.serialize_field("state", self.state.name())?;
        fields.end()
    }
}

impl DelayedCell for MapiCell {
    fn one_way_delay_ms(&self) -> u32 {
        self.one_way_delay_ms
    }

    fn without_delay(&self) -> Self {
        Self {
            one_way_delay_ms: 0,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn cell_names_are_unique() {
        let every = MapiCell::every();
        let names: BTreeSet<String> = every.iter().map(MapiCell::name).collect();
        assert_eq!(names.len(), every.len());
    }

    #[test]
    fn default_cells_include_those_of_every_target() {
        let default = MapiCell::of_default();
        let accelerated = default.iter().filter(|cell| {
            cell.action.is_bulk()
                && cell.mode == MailMode::Application
                && cell.state == ContentState::First
        });
        // Two clients, two actions, two links, four delays, two protections; and one client, two
        // actions and two links with Kerberos.
        assert_eq!(accelerated.count(), 64 + 4);
        let again = default
            .iter()
            .filter(|cell| cell.state == ContentState::Again);
        assert_eq!(again.count(), 4);
        let count = |action| default.iter().filter(|cell| cell.action == action).count();
        assert_eq!(count(MailAction::List), 8);
    }

    #[test]
    fn words_choose_by_all_their_parts() {
        let cell = MapiCell {
            client: MailClient::OutlookXp,
            action: MailAction::List,
            link: LinkKind::T1,
            one_way_delay_ms: 30,
            protection: MailProtection::None,
            mode: MailMode::Baseline,
            state: ContentState::First,
        };
        assert_eq!(cell.name(), "outlook-xp/list/T1/30ms/none/baseline/first");
        assert!(cell.is_chosen_by("outlook-xp+list+baseline"));
        assert!(!cell.is_chosen_by("list+OC-1"));
    }
}
