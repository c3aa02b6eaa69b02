"""The sites' texts, which a real site would read from its own disk."""

TEXTS = (
    # harbour
    """\
The harbour was quiet in the morning. The wind came from the west and the sea was calm.
The first boat left the harbour at six. It carried salt, rope and empty barrels to the island.
The pilot wrote the wind and the water into the log. The wind was west, the water was high.
At noon the wind turned to the north and the sea was rough. Two boats came back to the harbour.
The second boat left the harbour at nine. It carried bread, oil and letters to the island.
In the evening the fog came in from the sea. The keeper lit the lamp and rang the bell.
The pilot went out to the third boat and brought it into the harbour. The water was low.
The fog lay over the harbour all night. No boat left the harbour and no boat came back.
In the morning the fog was gone. The wind came from the south and the sea was calm again.
The first boat left the harbour at seven. It carried wood, nails and paint to the island.
The keeper cleaned the lamp and wrote the oil into the log. The oil was low, the glass was clear.
At noon the rain came from the south and the sea was grey. The boats stayed in the harbour.
The pilot counted the boats in the harbour. There were nine boats, and one was on the island.
In the evening the wind came from the west. The last boat came back with fish and empty barrels.
The keeper lit the lamp at eight. The night was clear, and the sea was calm until the morning.
""",
    # kitchen
    """\
Take two cups of flour, one egg and a pinch of salt. Mix the flour and the salt in a bowl.
Add the egg and stir until the dough is smooth. Let the dough rest for half an hour.
Heat the oil in a pan. Cut the onions into rings and fry them until they are brown.
Take three carrots, one leek and a bunch of parsley. Wash the carrots and cut them into slices.
Add the carrots and the leek to the pan. Stir, add a cup of water and let it cook for ten minutes.
Roll the dough on a board and cut it into strips. Boil the strips in salted water for four minutes.
Add the strips to the pan and stir. Season with salt and pepper, and serve with the parsley.
For the soup take one pound of peas, two onions and a little butter. Soak the peas over night.
Melt the butter in a pot. Fry the onions in the butter until they are soft, then add the peas.
Add four cups of water and let the soup cook for one hour. Stir the soup from time to time.
Season the soup with salt, pepper and a little vinegar. Serve the soup with slices of bread.
For the cake take one cup of sugar, two cups of flour, three eggs and half a cup of butter.
Beat the butter and the sugar until they are white. Add the eggs and stir for five minutes.
Add the flour and stir until the dough is smooth. Bake the cake for forty minutes until it is brown.
Let the cake cool in the form. Cut the cake into slices and serve it with a cup of cream.
""",
    # help desk
    """\
Ticket 101: the printer on floor 2 does not print. Restarted the printer. Closed.
Ticket 102: user cannot log in. Password had expired. Reset the password. Closed.
Ticket 103: the screen on floor 3 stays black. Cable was loose. Replaced the cable. Closed.
Ticket 104: mail is slow on floor 1. Server was full. Removed old mail. Waiting for the user.
Ticket 105: the printer on floor 3 prints blank pages. Toner was empty. Replaced the toner. Closed.
Ticket 106: user cannot open a file. File was locked. Unlocked the file. Closed.
Ticket 107: mail is slow on floor 1 again. Added a disk to the server. Closed.
Ticket 108: the phone on floor 2 does not ring. Cable was loose. Replaced the cable. Closed.
Ticket 109: user cannot log in. Account was locked. Unlocked the account. Closed.
Ticket 110: the screen on floor 1 flickers. Restarted the screen. Waiting for the user.
Ticket 111: the printer on floor 2 does not print. Paper was empty. Added paper. Closed.
Ticket 112: backup failed on the server. Disk was full. Removed old backups. Closed.
Ticket 113: the screen on floor 1 flickers again. Replaced the screen. Closed.
Ticket 114: user cannot open a file. File was damaged. Restored the file from the backup. Closed.
Ticket 115: the phone on floor 3 does not ring. Phone was broken. Replaced the phone. Closed.
Ticket 116: user cannot log in. Password had expired. Reset the password. Closed.
""",
)
