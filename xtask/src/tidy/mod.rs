//! Rules of the project that a compiler does not know: small functions over the checkout's files.
//!
//! A rule is a function from the files to complaints, each with the place and what to do. They are
//! listed in [`RULES`]; to add one, write it in the file it belongs to (`source` for Rust files,
//! `names` for the names of types and the first words of doc comments, `layering` for who may depend on whom, `documents` for what people read) and name it there.
//!
//! Only what can be decided from the text is here. What needs judgement is in CONTRIBUTING.md.

mod documents;
mod files;
mod layering;
mod names;
mod source;

use std::path::Path;

use anyhow::{Result, bail};

use files::Checkout;

/// A rule: what it looks at is the checkout, what it returns are the complaints.
type Rule = fn(&Checkout) -> Result<Vec<String>>;

/// Every rule, in the order in which complaints are most useful.
const RULES: &[Rule] = &[
    layering::crates_depend_one_way,
    layering::cores_use_no_input_or_output,
    layering::cores_carry_the_same_bans,
    layering::cores_forbid_unsafe_code,
    layering::cores_iterate_in_a_fixed_order,
    layering::manifests_share_lints_and_licence,
    source::files_open_with_their_purpose,
    source::nothing_is_left_over,
    source::neutral_code_names_no_protocol,
    source::no_place_of_one_machine,
    source::long_lists_of_allowances_do_not_grow,
    names::type_names_say_their_role,
    names::few_type_names_are_one_word_or_twice_defined,
    names::doc_comments_begin_with_their_subject,
    documents::links_lead_somewhere,
    documents::decisions_are_complete,
    documents::the_map_names_every_crate,
    documents::fuzz_targets_have_a_corpus,
];

/// Applies every rule.
///
/// # Errors
/// When there is a complaint; each has been printed by then.
pub(crate) fn run(root: &Path) -> Result<()> {
    let checkout = Checkout::read(root)?;
    let mut count = 0;
    for rule in RULES {
        for complaint in rule(&checkout)? {
            eprintln!("tidy: {complaint}");
            count += 1;
        }
    }
    if count > 0 {
        bail!("{count} places break a rule");
    }
    Ok(())
}
